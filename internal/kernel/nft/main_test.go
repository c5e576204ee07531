package nft

import (
	"testing"

	"github.com/fairway-net/fairway/internal/testing/childfault"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) {
	childfault.Main()
	testnet.Main(m)
}
