package node

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// TestRoguePodCIDRs: no route to what is not a node's appears in the kernel, the log, the
// metric and events say so once, and all is well when the node has gone.
func TestRoguePodCIDRs(t *testing.T) {
	for _, configured := range []bool{true, false} {
		t.Run(fmt.Sprintf("cluster CIDR configured: %t", configured), func(t *testing.T) {
			c := newCluster(t, 2, dual)
			m := c.machines[0]
			registry := prometheus.NewRegistry()
			var events []string
			m.config.Registry = registry
			m.config.Event = func(node, reason, _ string) { events = append(events, reason+" "+node) }
			m.config.APIServers = func() []netip.Addr { return []netip.Addr{outside4} }
			m.config.ServiceCIDRs = func() []netip.Prefix { return prefixes("10.96.0.0/16") }
			if configured {
				m.config.ClusterCIDRs = bothCIDRs
			}
			m.restart()
			m.mustSync(c.peers())
			want := m.routes()
			rogues := c.peers()
			for i, cidr := range []string{"8.8.8.8/32", "8.8.8.0/24", outside4.String() + "/32", "192.0.2.96/28", "10.244.2.128/25", "10.244.1.0/28", "10.96.4.0/24", "2001:db8::98/126"} {
				rogues = append(rogues, plan.Peer{Name: fmt.Sprintf("rogue-%d", i), Created: born(i), Addrs: addresses(fmt.Sprintf("192.0.2.%d", 60+i), fmt.Sprintf("2001:db8::%d", 60+i)), PodCIDRs: prefixes(cidr)})
			}
			for range 2 {
				m.mustSync(rogues)
			}
			if got := m.routes(); got != want {
				t.Errorf("routes:\n%s\nwant:\n%s", got, want)
			}
			if got := m.log.Count(" is not used: "); got != 8 || len(events) != 8 || events[0] != "PodCIDRRefused rogue-0" {
				t.Errorf("%d lines and events %q, want one for each of 8 nodes", got, events)
			}
			if got := refusedMetric(t, registry); got != 8 {
				t.Errorf("the metric counts %v refused podCIDRs, want 8", got)
			}
			m.mustSync(c.peers())
			if got := refusedMetric(t, registry); got != 0 {
				t.Errorf("the metric counts %v refused podCIDRs after the nodes have gone", got)
			}
		})
	}
}

func refusedMetric(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "fairway_pod_network_problems" && m.GetLabel()[0].GetValue() == plan.ReasonPodCIDR {
				return m.GetGauge().GetValue()
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Fatal("the metric does not count refused podCIDRs")
	return 0
}
