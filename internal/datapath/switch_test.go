package datapath_test

import (
	"testing"

	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/testing/childfault"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) {
	childfault.Main()
	testnet.Main(m)
}

// TestSwitch switches between all modes that this kernel has.
func TestSwitch(t *testing.T) { conformance.Switch(t, modes()) }

func modes() map[string]conformance.Open {
	must := func(t testing.TB, dp conformance.Datapath, err error) conformance.Datapath {
		if err != nil {
			t.Fatal(err)
		}
		return dp
	}
	return map[string]conformance.Open{
		"nftables": func(t testing.TB) conformance.Datapath {
			dp, err := nftables.New(nftables.Config{})
			return must(t, dp, err)
		},
		"iptables": func(t testing.TB) conformance.Datapath {
			dp, err := iptables.New(iptables.Config{Variant: iptables.NFT})
			return must(t, dp, err)
		},
		"userspace": func(t testing.TB) conformance.Datapath {
			dp, err := userspace.New(userspace.Config{})
			return must(t, dp, err)
		},
	}
}

// TestSwitchKeepsClients: nftables and userspace choose one endpoint for a client.
func TestSwitchKeepsClients(t *testing.T) {
	conformance.SwitchKeepsClients(t, modes(), "nftables", "userspace")
}

// TestSwitchFaults: one mode takes over from another while a program fails at each system call that changes rules, or a
// write fails.
func TestSwitchFaults(t *testing.T) {
	conformance.SwitchFaults(t, modes(), "nftables", "iptables")
}
