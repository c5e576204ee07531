package node

import (
	"strings"
	"testing"
)

// TestProbe: the kernel is asked and makes nothing.
func TestProbe(t *testing.T) {
	n := newNamespace(t)
	before := n.run("ip -o link")
	err := n.do(func() error {
		if err := Probe(t.Context(), WayVXLAN); err != nil {
			t.Errorf("VXLAN, which other tests use: %v", err)
		}
		if err := Probe(t.Context(), WayRoutes); err != nil {
			t.Error(err)
		}
		if err := probeLink(t.Context(), "fairways"); err == nil || !strings.Contains(err.Error(), "no links of kind fairways") {
			t.Errorf("a kind that there is not: %v", err)
		}
		made := false
		if err := Probe(t.Context(), WayWireGuard); err == nil {
			n.run("ip link add wg0 type wireguard && ip link del wg0")
			made = true
		} else if !strings.Contains(err.Error(), "the kernel has no WireGuard") {
			t.Error(err)
		}
		t.Logf("WireGuard: %t", made)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if after := n.run("ip -o link"); after != before {
		t.Errorf("links before:\n%s\nafter:\n%s", before, after)
	}
}
