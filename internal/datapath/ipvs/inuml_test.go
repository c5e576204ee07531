//go:build uml

package ipvs_test

import (
	"testing"

	"github.com/fairway-net/fairway/internal/datapath/ipvs"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// The tests in files with this build tag run inside user-mode Linux: see uml_test.go.

func TestMain(m *testing.M) { testnet.Main(m) }

func open(t testing.TB) conformance.Datapath {
	dp, err := ipvs.New(ipvs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return dp
}

func TestConformance(t *testing.T) { conformance.Run(t, open) }

func TestPolicies(t *testing.T) {
	conformance.RunPolicies(t, func(t testing.TB, _ *flow.Gate) conformance.Datapath { return open(t) })
}
