package fabric

import (
	"fmt"
	"testing"
)

func TestPlan(t *testing.T) {
	for _, c := range []struct{ family, node, controlPlane, dns, api, server string }{
		{"ipv4", "[192.168.49.2/24]", "[192.168.49.254/24]", "[10.96.0.10]", "[10.96.0.1]", "https://192.168.49.254:6443"},
		{"ipv6", "[fd00:49::2/64]", "[fd00:49::fe/64]", "[fd00:10:96::a]", "[fd00:10:96::1]", "https://[fd00:49::fe]:6443"},
		{"dual-stack", "[192.168.49.2/24 fd00:49::2/64]", "[192.168.49.254/24 fd00:49::fe/64]",
			"[10.96.0.10 fd00:10:96::a]", "[10.96.0.1 fd00:10:96::1]", "https://192.168.49.254:6443"},
	} {
		p := Plan{Family: Family(c.family)}
		for what, pair := range map[string][2]string{
			"node 1":        {fmt.Sprint(p.Node(1)), c.node},
			"control plane": {fmt.Sprint(p.ControlPlane()), c.controlPlane},
			"DNS":           {fmt.Sprint(p.DNS()), c.dns},
			"API service":   {fmt.Sprint(p.APIService()), c.api},
			"API server":    {p.APIServer(), c.server},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s: %s is %s, want %s", c.family, what, pair[0], pair[1])
			}
		}
	}
}

// TestPlanKeepsApart: the last node and the control plane have different addresses.
func TestPlanKeepsApart(t *testing.T) {
	p := Plan{Family: Dual}
	seen := map[string]string{fmt.Sprint(p.Gateway()): "gateway", fmt.Sprint(p.ControlPlane()): "control plane"}
	for n := 1; n <= MaxNodes; n++ {
		addrs := fmt.Sprint(p.Node(n))
		if other, ok := seen[addrs]; ok {
			t.Fatalf("node %d has the addresses of %s: %s", n, other, addrs)
		}
		seen[addrs] = NodeName(n)
	}
}
