package proxy

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// TestMetricsOfModes: alerts on kube-proxy's failures work, because each mode uses kube-proxy's metric names.
func TestMetricsOfModes(t *testing.T) {
	const prefix = "kubeproxy_sync_proxy_rules_"
	for mode, want := range map[string]map[string]int{
		"nftables":  {"nftables_sync_failures_total": 3},
		"iptables":  {"iptables_restore_failures_total": 1, "iptables_partial_restore_failures_total": 2},
		"userspace": {},
	} {
		r := prometheus.NewPedanticRegistry()
		m := NewMetrics(MetricsConfig{Registry: r, Mode: mode})
		m.carried.ask = answering(t, nil)
		for _, full := range []bool{true, false, false} {
			m.pass(time.Now(), datapath.Stats{Full: full}, errors.New("injected"))
		}
		got := scrape(t, r)
		for _, name := range []string{"nftables_sync_failures_total", "iptables_restore_failures_total", "iptables_partial_restore_failures_total"} {
			for _, f := range families {
				v, ok := got[prefix+name+`{ip_family="`+f+`"}`]
				if n, wanted := want[name]; ok != wanted || int(v) != n {
					t.Errorf("mode %s: %s of %s is %v (there: %v), want %d", mode, name, f, v, ok, n)
				}
			}
		}
		if got["fairway_datapath_failures_total"] != 3 {
			t.Errorf("mode %s: %v failures, want 3", mode, got["fairway_datapath_failures_total"])
		}
	}
}

// scrape reads all metrics with a single value, by name and labels.
func scrape(t *testing.T, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			name := f.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return all
}

// answering is a loop that answers scrapes until the test ends.
func answering(t *testing.T, all counts) chan chan<- counts {
	ask := make(chan chan<- counts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case reply := <-ask:
				reply <- all
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return ask
}

// TestChanges: the pending and the total changes of each family.
func TestChanges(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	now := service.Changes{Services: 5, Endpoints: 7, ServicesPending: 1, EndpointsPending: 2}
	m := NewMetrics(MetricsConfig{Registry: r, Mode: "nftables", Changes: func() service.Changes { return now }})
	m.carried.ask = answering(t, nil)
	got := scrape(t, r)
	for name, want := range map[string]float64{
		"service_changes_total": 5, "endpoint_changes_total": 7, "service_changes_pending": 1, "endpoint_changes_pending": 2,
	} {
		for _, f := range families {
			if v := got["kubeproxy_sync_proxy_rules_"+name+`{ip_family="`+f+`"}`]; v != want {
				t.Errorf("%s of %s is %v, want %v", name, f, v, want)
			}
		}
	}
}

// TestNoLocalEndpoints follows a Service with Local policies, as its endpoints come and go.
func TestNoLocalEndpoints(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m := NewMetrics(MetricsConfig{Registry: r, Mode: "nftables"})
	m.carried.ask = answering(t, nil)
	name := api.Name{Namespace: "ns", Name: "web"}
	compiled := func(nodes ...string) {
		slice := &service.Slice{Name: name, Service: name, Ports: []service.SlicePort{{Proto: api.TCP, Port: 8080}}}
		for i, node := range nodes {
			slice.Endpoints = append(slice.Endpoints, service.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), Node: node, Ready: true, Serving: true})
		}
		m.compiled(name, service.Compile(&service.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, InternalLocal: true, ExternalLocal: true,
			Ports: []service.Port{{Proto: api.TCP, Port: 80, NodePort: 30080}},
		}, []*service.Slice{slice}, service.Facts{Node: service.Node{Name: "here"}}))
	}
	expect := func(when string, want float64) {
		t.Helper()
		got := scrape(t, r)
		for _, policy := range []string{"internal", "external"} {
			four, six := `{ip_family="IPv4",traffic_policy="`+policy+`"}`, `{ip_family="IPv6",traffic_policy="`+policy+`"}`
			const metric = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
			if v, ok := got[metric+four]; v != want || !ok {
				t.Errorf("%s: %s is %v, want %v", when, four, v, want)
			}
			if v, ok := got[metric+six]; v != 0 || !ok {
				t.Errorf("%s: %s is %v, want none: the Service has no IPv6", when, six, v)
			}
		}
	}
	compiled()
	expect("no endpoint", 0)
	compiled("there")
	expect("one endpoint, on another node", 1)
	compiled("there", "there")
	expect("two, on another node", 1)
	compiled("there", "here")
	expect("one on this node", 0)
	compiled("there")
	expect("none on this node again", 1)
	m.compiled(name, nil)
	expect("the Service is gone", 0)
}

// TestCarried: a scrape shows the datapath's counters of that moment, and no counter without an event.
func TestCarried(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m := NewMetrics(MetricsConfig{Registry: r, Mode: "nftables"})
	web := api.PortName{Name: api.Name{Namespace: "shop", Name: "web"}, Port: "http"}
	m.carried.ask = answering(t, counts{
		web: {Connections: 3, Packets: 30, Bytes: 3000},
		{Name: api.Name{Namespace: "shop", Name: "db"}}: {Rejects: 4, Drops: 5},
	})
	got := scrape(t, r)
	for name := range got {
		if !strings.HasPrefix(name, "fairway_service_") {
			delete(got, name)
		}
	}
	const ofWeb, ofDB = `{namespace="shop",port="http",service="web"}`, `{namespace="shop",port="",service="db"}`
	want := map[string]float64{
		"fairway_service_connections_total" + ofWeb: 3, "fairway_service_packets_total" + ofWeb: 30, "fairway_service_bytes_total" + ofWeb: 3000,
		"fairway_service_rejects_total" + ofDB: 4, "fairway_service_drops_total" + ofDB: 5,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestScrape: the loop answers a scrape before its first pass and between passes.
func TestScrape(t *testing.T) {
	h := start(t, nil)
	scraped := func(when string, want counts) {
		t.Helper()
		reply, asked := make(chan counts, 1), false
		for deadline := time.After(30 * time.Second); !asked; {
			select {
			case h.metrics.carried.ask <- reply:
				asked = true
			case <-h.syncs: // another pass
			case <-deadline:
				t.Fatalf("%s: the loop does not answer", when)
			}
		}
		if all := <-reply; !maps.Equal(all, want) {
			t.Errorf("%s: %v, want %v", when, all, want)
		}
	}
	scraped("before the first lists are in", nil)
	h.api.set(1)
	close(h.api.synced)
	h.pass(t)
	scraped("after a pass", counts{{Name: api.Name{Namespace: "ns", Name: "svc-1"}, Port: "http"}: {}})
}
