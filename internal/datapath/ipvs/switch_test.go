//go:build uml

package ipvs_test

import (
	"testing"

	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/testing/conformance"
)

// From every mode in the kernel to every other, including IPVS, without an effect on clients.
func TestSwitch(t *testing.T) {
	conformance.Switch(t, map[string]conformance.Open{"ipvs": open, "nftables": openNFTables, "iptables": openIPTables})
}

// From IPVS to user space and back. The connections that user space carries itself keep it running for a minute.
func TestSwitchUserspace(t *testing.T) {
	conformance.Switch(t, map[string]conformance.Open{"ipvs": open, "userspace": openUserspace})
}

// BenchmarkModes measures nftables next to IPVS, because this kernel is slower than the machine's.
func BenchmarkModes(b *testing.B) {
	conformance.Bench(b, map[string]conformance.Open{"ipvs": open, "nftables": openNFTables})
}

func openNFTables(t testing.TB) conformance.Datapath {
	dp, err := nftables.New(nftables.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return dp
}

func openIPTables(t testing.TB) conformance.Datapath {
	dp, err := iptables.New(iptables.Config{Variant: iptables.NFT})
	if err != nil {
		t.Fatal(err)
	}
	return dp
}

func openUserspace(t testing.TB) conformance.Datapath {
	dp, err := userspace.New(userspace.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return dp
}
