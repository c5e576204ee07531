package nftables_test

import (
	"testing"

	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func open(cfg nftables.Config) conformance.Open {
	return func(t testing.TB) conformance.Datapath {
		dp, err := nftables.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return dp
	}
}

func TestConformance(t *testing.T) { conformance.Run(t, open(nftables.Config{})) }

// TestCounting tests the ruleset that counts traffic, in which packets pass other rules.
func TestCounting(t *testing.T) {
	conformance.RunScenarios(t, open(nftables.Config{CountTraffic: true}))
}

func TestMain(m *testing.M) { testnet.Main(m) }

func TestPolicies(t *testing.T) {
	conformance.RunPolicies(t, func(t testing.TB, _ *flow.Gate) conformance.Datapath { return open(nftables.Config{})(t) })
}

func TestRejects(t *testing.T) {
	conformance.RunRejects(t, func(t testing.TB, _ *flow.Gate) conformance.Datapath { return open(nftables.Config{})(t) },
		map[string]conformance.Rejection{"ClusterIP": conformance.Rejections, "NodePort": conformance.Rejections, "endpoint": conformance.Rejections})
}
