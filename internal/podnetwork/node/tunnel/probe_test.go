package tunnel

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

func keyOf(b byte) plan.Key { return plan.Key{0: b, 31: 1} }

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// run runs a line of shell in a namespace.
func run(t *testing.T, n *testnet.Namespace, line string) (out string) {
	t.Helper()
	err := n.Do(func() error {
		text, err := exec.CommandContext(t.Context(), "sh", "-ec", line).CombinedOutput()
		if out = string(text); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestProbe: the kernel is asked and makes nothing.
func TestProbe(t *testing.T) {
	n := testnet.NewNamespace(t, "node")
	before := run(t, n, "ip -o link")
	err := n.Do(func() error {
		if err := Probe(t.Context(), plan.WayVXLAN); err != nil {
			t.Errorf("VXLAN, which other tests use: %v", err)
		}
		if err := Probe(t.Context(), plan.WayRoutes); err != nil {
			t.Error(err)
		}
		if err := probeLink(t.Context(), "fairways"); err == nil || !strings.Contains(err.Error(), "no links of kind fairways") {
			t.Errorf("a kind that there is not: %v", err)
		}
		made := false
		if err := Probe(t.Context(), plan.WayWireGuard); err == nil {
			run(t, n, "ip link add wg0 type wireguard && ip link del wg0")
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
	if after := run(t, n, "ip -o link"); after != before {
		t.Errorf("links before:\n%s\nafter:\n%s", before, after)
	}
}
