package iptables_test

import (
	"testing"

	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/childfault"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) {
	childfault.Main()
	testnet.Main(m)
}

func TestConformance(t *testing.T) { conformance.Run(t, open(iptables.NFT)) }

// TestLegacy runs only the scenarios, because only the program that writes rules differs.
func TestLegacy(t *testing.T) { conformance.RunScenarios(t, open(iptables.Legacy)) }

func open(v iptables.Variant) conformance.Open {
	return func(t testing.TB) conformance.Datapath {
		d, err := iptables.New(iptables.Config{Variant: v})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

func TestPolicies(t *testing.T) {
	for name, v := range map[string]iptables.Variant{"nft": iptables.NFT, "legacy": iptables.Legacy} {
		t.Run(name, func(t *testing.T) {
			conformance.RunPolicies(t, func(t testing.TB, _ *flow.Gate) conformance.Datapath { return open(v)(t) })
		})
	}
}

func TestRejects(t *testing.T) {
	for name, v := range map[string]iptables.Variant{"nft": iptables.NFT, "legacy": iptables.Legacy} {
		t.Run(name, func(t *testing.T) {
			conformance.RunRejects(t, func(t testing.TB, _ *flow.Gate) conformance.Datapath { return open(v)(t) },
				map[string]conformance.Rejection{"ClusterIP": conformance.Rejections, "NodePort": conformance.Rejections, "endpoint": conformance.Rejections})
		})
	}
}
