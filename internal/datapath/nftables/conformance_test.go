package nftables_test

import (
	"testing"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/conformance"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/testnet"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t testing.TB) datapath.Datapath {
		dp, err := nftables.New(nftables.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return dp
	})
}

func TestMain(m *testing.M) { testnet.Main(m) }
