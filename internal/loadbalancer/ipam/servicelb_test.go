package ipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
)

// hostN is a node with addresses of both families and K3s' labels.
func hostN(n int, labels ...string) Host {
	h := Host{Name: fmt.Sprintf("node-%d", n), Usable: true, Labels: map[string]string{},
		Internal: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n))}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		h.Labels["svccontroller.k3s.cattle.io/"+key] = value
	}
	return h
}

// hostRequest is a Service's, which is changed.
func hostRequest(name string, created int64, port uint16, change ...func(*HostRequest)) HostRequest {
	r := HostRequest{Service: &Service{Name: api.Name{Namespace: "d", Name: name}, Created: created, Wanted: true,
		Families: []Family{IPv4}, Ports: []Port{{api.TCP, port}}}}
	for _, c := range change {
		c(&r)
	}
	return r
}

func setOf(names []string) map[string]bool {
	set := map[string]bool{}
	for _, n := range names {
		set[n] = true
	}
	return set
}

// sharedText is what became of requests.
func sharedText(requests []HostRequest, hosts []Host) string {
	var all []string
	for _, d := range ShareHosts(requests, hosts, []PortRange{{22, 22}, {10248, 10260}}) {
		text := fmt.Sprintf("%s %v", d.Name.Name, d.Addrs)
		if len(d.Leaving) > 0 {
			text += fmt.Sprintf(" leaving %v", d.Leaving)
		}
		for _, e := range d.Events {
			text += " " + e.Message
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

func TestShareHosts(t *testing.T) {
	host, request := hostN, hostRequest
	local := func(nodes ...string) func(*HostRequest) { return func(r *HostRequest) { r.Nodes = setOf(nodes) } }
	leaving := func(nodes ...string) func(*HostRequest) { return func(r *HostRequest) { r.Leaving = setOf(nodes) } }
	pooled := func(r *HostRequest) { r.Labels = map[string]string{"svccontroller.k3s.cattle.io/lbpool": "a"} }
	dual := func(r *HostRequest) { r.Families = []Family{IPv6, IPv4} }
	down, external := host(2), host(2)
	down.Usable = false
	external.External = []netip.Addr{netip.MustParseAddr("203.0.113.2")}
	for _, c := range []struct {
		what     string
		hosts    []Host
		requests []HostRequest
		want     string
	}{
		{"all nodes", []Host{host(2), host(1)}, []HostRequest{request("web", 1, 80)}, "web [192.0.2.1 192.0.2.2]"},
		{"both families", []Host{host(1), host(2)}, []HostRequest{request("web", 1, 80, dual)}, "web [2001:db8::1 2001:db8::2 192.0.2.1 192.0.2.2]"},
		{"a node that is down", []Host{host(1), down}, []HostRequest{request("web", 1, 80)}, "web [192.0.2.1]"},
		{"external addresses where there are any", []Host{host(1), external}, []HostRequest{request("web", 1, 80)}, "web [203.0.113.2]"},
		{"the older has the port", []Host{host(1)}, []HostRequest{request("b", 1, 80), request("a", 2, 80), request("c", 3, 81)},
			`a [] Failed to allocate IP for "d/a": port 80/TCP of node node-1 is in use by Service d/b; b [192.0.2.1]; c [192.0.2.1]`},
		{"who has the port keeps it", []Host{host(1)}, []HostRequest{request("b", 1, 80), request("a", 2, 80, func(r *HostRequest) { r.Held = r.Ports })},
			`a [192.0.2.1]; b [] Failed to allocate IP for "d/b": port 80/TCP of node node-1 is in use by Service d/a`},
		{"policy Local leaves the port to others elsewhere", []Host{host(1), host(2)}, []HostRequest{request("a", 1, 80, local("node-2")), request("b", 2, 80)}, "a [192.0.2.2]; b [192.0.2.1]"},
		{"labelled nodes only", []Host{host(1, "enablelb=true"), host(2, "enablelb=false"), host(3)}, []HostRequest{request("web", 1, 80)}, "web [192.0.2.1]"},
		{"a pool", []Host{host(1, "enablelb=true", "lbpool=a"), host(2, "enablelb=true", "lbpool=b"), host(3, "enablelb=true")},
			[]HostRequest{request("a", 1, 80, pooled), request("b", 2, 80)}, "a [192.0.2.1]; b [192.0.2.2 192.0.2.3]"},
		{"pools count with enablelb only", []Host{host(1, "lbpool=b")}, []HostRequest{request("a", 1, 80, pooled)}, "a [192.0.2.1]"},
		{"a port of the node's own programs", []Host{host(1)}, []HostRequest{request("a", 1, 10250)}, `a [] Failed to allocate IP for "d/a": port 10250/TCP is a node's own [choose another port]`},
		{"no node", nil, []HostRequest{request("a", 1, 80)}, `a [] Failed to allocate IP for "d/a": no node takes part`},
		{"policy Local, and no endpoint", []Host{host(1)}, []HostRequest{request("a", 1, 80, local())}, `a [] Failed to allocate IP for "d/a": no node that takes part has an endpoint that serves (externalTrafficPolicy: Local)`},
		{"a node whose last endpoint terminates keeps the port", []Host{host(1), host(2)}, []HostRequest{request("a", 1, 80, local("node-1", "node-2"), leaving("node-1")), request("b", 2, 80)},
			`a [192.0.2.2] leaving [192.0.2.1]; b [] Failed to allocate IP for "d/b": port 80/TCP of node node-2 is in use by Service d/a`},
		{"the endpoints of all nodes terminate", []Host{host(1), host(2)}, []HostRequest{request("a", 1, 80, local("node-1", "node-2"), leaving("node-1", "node-2"))}, "a [192.0.2.1 192.0.2.2]"},
		{"external addresses, of one that leaves", []Host{host(1), external}, []HostRequest{request("a", 1, 80, local("node-1", "node-2"), leaving("node-2"))}, "a [203.0.113.2]"},
		{"not wanted", []Host{host(1)}, []HostRequest{request("a", 1, 80, func(r *HostRequest) { r.Wanted = false })}, ""},
	} {
		if text := sharedText(c.requests, c.hosts); text != c.want {
			t.Errorf("%s: %s\nwant %s", c.what, text, c.want)
		}
	}
}
