package service_test

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/service"
)

// listed has an address of each kind, and each thing that a column can say.
func listed() *service.Table {
	ep := func(addr string, local bool, weight uint16) service.Endpoint {
		return service.Endpoint{Addr: netip.MustParseAddrPort(addr), Local: local, Weight: weight}
	}
	to := func(m service.Masquerade, all ...service.Endpoint) *service.Route {
		return &service.Route{Masquerade: m, Endpoints: all}
	}
	near, far := ep("10.244.0.5:8080", true, 0), ep("10.244.1.5:8080", false, 3)
	both, local := to(service.MasqueradeOffCluster, near, far), to(service.MasqueradeHairpin, near)
	at := func(addr, ns, name string, in, out *service.Route) *service.Frontend {
		return &service.Frontend{
			Addr: netip.MustParseAddrPort(addr), Proto: api.TCP, Internal: in, External: out,
			Service: api.PortName{Name: api.Name{Namespace: ns, Name: name}, Port: "http"},
		}
	}
	always := to(service.MasqueradeAll, near, far)
	cluster, balancer := at("10.96.0.9:80", "default", "web", both, both), at("203.0.113.9:80", "default", "web", both, local)
	cluster.ClusterIP, cluster.Affinity, cluster.Balance = true, 3*time.Hour, service.RoundRobin
	balancer.LoadBalancer, balancer.Sources = true, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	idle := at("[fd00:10:96::9]:80", "a", "idle", &service.Route{Action: service.Reject}, &service.Route{Action: service.Drop})
	idle.ClusterIP, idle.Proto, idle.Service.Port = true, api.UDP, ""
	return service.NewTable(service.Settings{
		Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, PodInterfaces: []string{"veth*"}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("192.168.49.2/32"), netip.MustParsePrefix("fd00::/64")},
	}, []*service.Frontend{
		balancer, at("203.0.113.7:80", "default", "web", always, always), cluster, idle,
		at("0.0.0.0:30080", "default", "web", always, always), at("[::]:30080", "default", "web", always, always),
	})
}

// TestListing: what people and programs see of a table, and of a difference.
func TestListing(t *testing.T) {
	table := listed()
	values := map[string]output.Value{
		"all": table.List("nftables", ""), "namespace": table.List("nftables", "a"), "nothing": (&service.Table{}).List("nftables", ""),
		"diff": service.Compare("nftables", table.Only(api.Name{Namespace: "a", Name: "idle"}), table.Only(api.Name{Namespace: "default", Name: "web"})),
	}
	for name, v := range values {
		for _, f := range []output.Format{output.Table, output.Wide, output.JSON, output.YAML} {
			if name == "namespace" && f != output.Table || name == "nothing" && f == output.YAML {
				continue
			}
			var got bytes.Buffer
			if err := output.Write(&got, f, v); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", "listing", name+"."+string(f))
			if u := flag.Lookup("update"); u != nil && u.Value.String() == "true" {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, got.Bytes()) {
				t.Errorf("%s (%v):\n%s\nwant\n%s", path, err, got.Bytes(), want)
			}
		}
	}
}
