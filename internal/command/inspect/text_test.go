package inspect

import (
	"bytes"
	"flag"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/cli/output"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
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

var update = flag.Bool("update", false, "write the golden texts again")

// listing is a service.Listing as an output.Value.
type listing struct{ service.Listing }

func (l listing) WriteTable(w io.Writer, wide bool) error {
	return writeListing(w, l.Listing, wide, true)
}

// TestListing: what people and programs see of a table, and of a difference.
func TestListing(t *testing.T) {
	table := listed()
	values := map[string]output.Value{
		"all": listing{table.List("nftables", "")}, "namespace": listing{table.List("nftables", "a")}, "nothing": listing{(&service.Table{}).List("nftables", "")},
		"diff": difference{service.Compare("nftables", table.Only(api.Name{Namespace: "a", Name: "idle"}), table.Only(api.Name{Namespace: "default", Name: "web"}))},
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
			if *update {
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

// TestReports: what people see of every Service of a scenario that has the golden text explain.
func TestReports(t *testing.T) {
	all, err := scenario.Load("../../service/testdata")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, s := range all {
		want, ok := s.Golden("explain")
		if !ok {
			continue
		}
		checked++
		table := s.Table()
		var got strings.Builder
		for _, svc := range s.Services {
			r := service.NewReport(svc, s.SlicesOf(svc.Name), s.Facts, table.Entry(svc.Name), service.Origins())
			if err := writeReport(&got, r); err != nil {
				t.Fatal(err)
			}
		}
		if got.String() == want {
			continue
		}
		if !*update {
			t.Errorf("%s: explain differs (go test -update writes it)\n--- got\n%s--- want\n%s", s.Name, &got, want)
		} else if err := s.Update("explain", got.String()); err != nil {
			t.Fatal(err)
		}
	}
	if checked == 0 {
		t.Error("no scenario has the golden text explain")
	}
}

func TestWriteDiff(t *testing.T) {
	frontend := func(name string, ip byte) *service.Frontend {
		return &service.Frontend{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, ip}), 80), Proto: api.TCP,
			Service:  api.PortName{Name: api.Name{Namespace: "ns", Name: name}},
			Internal: &service.Route{Action: service.Reject}, External: &service.Route{Action: service.Reject},
		}
	}
	have := service.NewTable(service.Settings{}, []*service.Frontend{frontend("same", 1), frontend("gone", 2)})
	want := service.NewTable(service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, []*service.Frontend{frontend("same", 1), frontend("new", 3)})
	var text strings.Builder
	d := difference{service.Compare("nftables", have, want)}
	if err := d.WriteTable(&text, false); !d.Any() || err != nil {
		t.Errorf("they differ: %v, %v", d, err)
	}
	const all = `   NAMESPACE  SERVICE  KIND        ADDRESS           FROM  ACTION  SNAT  ENDPOINTS
-  ns         gone     ExternalIP  10.96.0.2:80/TCP  any   reject  -     -
+  ns         new      ExternalIP  10.96.0.3:80/TCP  any   reject  -     -
- pods -
+ pods 10.244.0.0/16
`
	if text.String() != all {
		t.Errorf("%s\nwant\n%s", &text, all)
	}
	text.Reset()
	if d := (difference{service.Compare("nftables", want, want)}); d.Any() || d.WriteTable(&text, false) != nil || text.Len() > 0 {
		t.Errorf("a table differs from itself: %v, %q", d, &text)
	}
	if only := have.Only(api.Name{Namespace: "ns", Name: "gone"}); only == nil || only.Entry(api.Name{Namespace: "ns", Name: "same"}) != nil || only.Entry(api.Name{Namespace: "ns", Name: "gone"}) == nil {
		t.Errorf("the table of one Service: %v", only)
	}
	if have.Only(api.Name{Namespace: "ns", Name: "new"}) != nil {
		t.Error("a Service that is not in the table has one")
	}
}
