package loadbalancer

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

// TestConfigMetrics: the metrics for MetalLB's alerts agree with the ConfigurationState of the controller and of a
// speaker.
func TestConfigMetrics(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	s := kube.New(kube.Config{Log: log, NodeName: "node-1", Client: fake.NewClientset(), AllNodes: true, Custom: newMetallbAPI(), LoadBalancerNamespace: "metallb-system"})
	addresses := NewAddresses(log, s, kube.NewRecorder(log, fake.NewClientset(), "node-1"), "", IPModeVIP, nil)
	routes := SubscribeSpeaker(s, "").SubscribeBGP()
	for name, c := range map[string]struct {
		collector    prometheus.Collector
		right, wrong func()
	}{
		"controller": {addresses,
			func() { addresses.report.set(ipam.Report{}) },
			func() {
				addresses.report.set(ipam.Report{Problems: []string{"IPAddressPool lan overlaps IPAddressPool wan"}})
			}},
		"speaker": {routes.Metrics(),
			func() { routes.Report(nil) },
			func() { routes.Report([]announce.PeerProblem{{Peer: "tor", Reason: "vrf is not supported"}}) }},
	} {
		registry := prometheus.NewRegistry()
		registry.MustRegister(c.collector)
		check := func(when, want string) {
			all, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range all {
				if short, is := strings.CutPrefix(f.GetName(), "metallb_k8s_client_config_"); is {
					got = append(got, fmt.Sprint(short, " ", f.GetMetric()[0].GetGauge().GetValue()))
				}
			}
			if text := strings.Join(got, ", "); text != want {
				t.Errorf("%s, %s: %s, want %s", name, when, text, want)
			}
		}
		check("before anything was read", "loaded_bool 0, stale_bool 0")
		c.right()
		check("when all is right", "loaded_bool 1, stale_bool 0")
		c.wrong()
		check("when something is wrong", "loaded_bool 1, stale_bool 1")
		c.right()
		check("when that is mended", "loaded_bool 1, stale_bool 0")
	}
}
