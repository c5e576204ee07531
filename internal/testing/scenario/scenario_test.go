package scenario

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

const objects = `
-- objects.yaml --
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.9
  clusterIPs: [10.96.0.9]
  ports: [{port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.244.1.5], nodeName: n1}
- {addresses: [10.244.2.5], nodeName: n2}
`

func TestParse(t *testing.T) {
	s, err := Parse([]byte(`# about it
node n1 zone=a   # the node
detect 10.244.0.0/16
nodeports all
masquerade-all
api-servers 172.18.0.12
packet from=pod to=10.96.0.9:80/tcp -> one-of 10.244.2.5:8080 10.244.1.5:8080(node) source=client
packet from=10.244.1.5 to=n1:30080/udp -> drop
packet from=outside to=[n1]:30080/tcp -> reject
` + objects))
	if err != nil {
		t.Fatal(err)
	}
	want := service.Facts{Node: service.Node{
		Name: "n1", Zone: "a", MasqueradeAll: true,
		Primary4: World.Node.Addr(true), Primary6: World.Node.Addr(false),
		NodeAddrs: service.NewAddrSet(World.Node.V4, World.Node.V6), APIServers: service.NewAddrSet(World.Peer.V4),
		Settings: service.Settings{
			Pods:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
		},
	}}
	if !reflect.DeepEqual(s.Facts, want) {
		t.Errorf("facts %+v, want %+v", s.Facts, want)
	}
	if len(s.Services) != 1 || len(s.Slices) != 1 || s.Slices[0].Service != s.Services[0].Name {
		t.Fatalf("objects: %v %v", s.Services, s.Slices)
	}
	if got := s.Packets[0].Want.String(); got != "one-of 10.244.1.5:8080(node) 10.244.2.5:8080(client)" {
		t.Errorf("outcome %q", got)
	}
	if p := s.Packets[1]; p.To != netip.MustParseAddrPort("172.18.0.11:30080") || p.Proto != api.UDP ||
		p.From.Addr != netip.MustParseAddr("10.244.1.5") {
		t.Errorf("packet %+v", p)
	}
	if p := s.Packets[2]; p.To != netip.MustParseAddrPort("[fd00:172:18::11]:30080") || p.From.Addr != World.Outside.V6 {
		t.Errorf("packet %+v", p)
	}
}

// A misspelled line is an error, because an ignored line would check nothing.
func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                         `"node NAME" is missing`,
		"nod n1":                   `"nod" is none of`,
		"node n1 zon=a":            "is not zone=ZONE",
		"node n1\ndetect":          "line 2",
		"node n1\ndetect 10.0.0.0": "no '/'",
		"node n1\nnodeports some":  "some",
		"node n1\npacket from=pod": "want from=F",
		"node n1\npacket from=moon to=10.96.0.9:80/tcp -> drop":            `"moon" is none of`,
		"node n1\npacket from=10.9.9.9 to=10.96.0.9:80/tcp -> drop":        "no slice has the endpoint",
		"node n1\npacket from=pod to=10.96.0.9:80 -> drop":                 "lacks /tcp",
		"node n1\npacket from=pod to=10.96.0.9:80/icmp -> drop":            "icmp",
		"node n1\npacket from=pod to=n2:80/tcp -> drop":                    "n2",
		"node n1\npacket from=pod to=10.96.0.9:80/tcp -> dorp":             "neither drop, reject",
		"node n1\npacket from=pod to=10.96.0.9:80/tcp -> 10.9.9.9:80":      "no slice has the endpoint",
		"node n1\npacket from=pod to=10.96.0.9:80/tcp -> source=client":    "nothing behind the arrow",
		"node n1\npacket from=pod to=10.96.0.9:80/tcp -> 10.9.9.9:80(cow)": `source "cow"`,
		"node n1\nbalance":                        "want the name",
		"node n1\nbalance rr lc":                  "want the name",
		"node n1\nunsupported rr best":            `invalid value "best" (allowed: random`,
		"node n1\n-- tabel --\nx":                 `file "tabel"`,
		"node n1\n-- objects.yaml --\nkind: Node": `"Node"`,
		"node n1\n-- objects.yaml --\nkind: Service\napiVersion: v1\nspce: 1":                                    "spce",
		"node n1\n-- objects.yaml --\nkind: EndpointSlice\napiVersion: discovery.k8s.io/v1\nmetadata: {name: x}": "there is no Service",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", text, err, want)
		}
	}
}

// Orders with the same seed are the same, and a seed gives many orders. Each contains the steps that it claims.
func TestOrders(t *testing.T) {
	s, err := Parse([]byte("node n1\n" + objects))
	if err != nil {
		t.Fatal(err)
	}
	count := func() (names, events, gone int) {
		for _, order := range s.Orders(rand.New(rand.NewPCG(1, 2))) {
			names++
			for _, e := range order {
				events++
				if e.GoneSlice != (api.Name{}) || e.GoneService != (api.Name{}) {
					gone++
				}
			}
		}
		return names, events, gone
	}
	n, e, g := count()
	n2, e2, g2 := count()
	if n != n2 || e != e2 || g != g2 {
		t.Errorf("the same seed gave %d/%d/%d and %d/%d/%d", n, e, g, n2, e2, g2)
	}
	if n < 50 || g == 0 {
		t.Errorf("%d orders with %d deletions", n, g)
	}
}

// Predict, by hand, for cases with different scopes and masquerading.
func TestPredict(t *testing.T) {
	addr := netip.MustParseAddrPort
	local := service.Endpoint{Addr: addr("10.244.1.5:8080"), Local: true}
	remote := service.Endpoint{Addr: addr("10.244.2.5:8080")}
	route := func(m service.Masquerade, e ...service.Endpoint) *service.Route {
		return &service.Route{Endpoints: e, Masquerade: m}
	}
	table := service.NewTable(service.Settings{
		Pods:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")},
	}, []*service.Frontend{
		{Addr: addr("10.96.0.9:80"), Proto: api.TCP, Internal: route(service.MasqueradeOffCluster, local, remote), External: route(service.MasqueradeOffCluster, local, remote)},
		{Addr: addr("0.0.0.0:30080"), Proto: api.TCP, Internal: route(service.MasqueradeOffCluster, remote), External: &service.Route{Action: service.Drop}},
	})
	for _, c := range []struct {
		place, to string
		proto     api.Proto
		want      string
	}{
		{"pod", "10.96.0.9:80", api.TCP, "one-of 10.244.1.5:8080(client) 10.244.2.5:8080(client)"},
		{"outside", "10.96.0.9:80", api.TCP, "one-of 10.244.1.5:8080(node) 10.244.2.5:8080(node)"},
		{"10.244.1.5", "10.96.0.9:80", api.TCP, "one-of 10.244.1.5:8080(node) 10.244.2.5:8080(client)"},
		{"node", "172.18.0.11:30080", api.TCP, "one-of 10.244.2.5:8080(node)"},
		{"pod-remote", "192.0.2.11:30080", api.TCP, "one-of 10.244.2.5:8080(client)"},
		{"outside", "172.18.0.11:30080", api.TCP, "drop"},
		{"node", "127.0.0.1:30080", api.TCP, "reject"},
		{"outside", "172.18.0.11:30080", api.UDP, "reject"},
		{"outside", "10.96.0.9:80", api.UDP, "reject"},
		{"outside", "172.18.0.12:30080", api.TCP, ""},
	} {
		p := Packet{From: From{Place: c.place}, To: addr(c.to), Proto: c.proto}
		p.From.Addr, _ = netip.ParseAddr(c.place)
		for _, place := range Places() {
			if place.Name == c.place {
				p.From.Addr = place.V4
			}
		}
		got, ok := Predict(table, p)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("from %s to %s/%v: %v %v, want %q", c.place, c.to, c.proto, got, ok, c.want)
		}
	}
}
