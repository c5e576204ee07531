package peers

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/test/peers/volley"
)

// documented are the differences that are meant, by their heading in
// docs/kube-proxy-differences.md.
var documented = []struct {
	heading string
	is      func(difference, objects, configuration) bool
}{
	{"TCP connections that are refused", func(d difference, _ objects, _ configuration) bool {
		return d.packet.Proto == api.TCP && d.theirs.only(volley.Refused) && d.ours.only(volley.Reset)
	}},
	{"Ports of external addresses that no Service has", func(d difference, _ objects, _ configuration) bool {
		return d.unused && d.ours.refused()
	}},
	{"NodePorts of a family in which the node has no address", func(d difference, _ objects, c configuration) bool {
		return c.one && nodePort(d.packet) && d.packet.To.Addr().Is6()
	}},
	{"Ports and addresses of ClusterIPs that no Service has, in mode iptables", func(d difference, in objects, c configuration) bool {
		return c.mode == "iptables" && clusterIPs.Contains(d.packet.To.Addr()) && !serves(d.packet, in)
	}},
	{"NodePorts without endpoints on addresses that have no NodePorts, in mode iptables", func(d difference, _ objects, c configuration) bool {
		return c.mode == "iptables" && nodePort(d.packet) && d.packet.To.Addr() != scenario.World.Node.Addr(d.packet.To.Addr().Is4()) &&
			(d.theirs.only(volley.Silence) || d.theirs.only(volley.Refused)) && d.ours.refused()
	}},
	{"External addresses without endpoints that the node itself calls, in mode iptables", func(d difference, in objects, c configuration) bool {
		to := d.packet.To.Addr()
		return c.mode == "iptables" && d.packet.From.Place == "node" && !nodePort(d.packet) && !clusterIPs.Contains(to) &&
			d.theirs.only(volley.Silence) && d.ours.refused()
	}},
	{"Source ranges of a load balancer without endpoints, in mode iptables", func(d difference, in objects, c configuration) bool {
		svc := owner(d.packet, in)
		return c.mode == "iptables" && svc != nil && len(svc.Spec.LoadBalancerSourceRanges) > 0 &&
			d.theirs.refused() && d.ours.only(volley.Silence)
	}},
	{"An address that is an external IP and a load balancer's with source ranges, in mode iptables", func(d difference, in objects, c configuration) bool {
		svc := owner(d.packet, in)
		return c.mode == "iptables" && svc != nil && len(svc.Spec.LoadBalancerSourceRanges) > 0 && d.ours.only(volley.Silence) &&
			slices.Contains(svc.Spec.ExternalIPs, d.packet.To.Addr().String())
	}},
}

// explain returns the heading of the documented difference that d is, if it is one.
func explain(d difference, in objects, c configuration) string {
	for _, e := range documented {
		if e.is(d, in, c) {
			return e.heading
		}
	}
	return ""
}

// TestDifferencesAreDocumented holds the table against the document.
func TestDifferencesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/kube-proxy-differences.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range documented {
		if !strings.Contains(string(text), "\n## "+e.heading+"\n") {
			t.Errorf("docs/kube-proxy-differences.md has no heading %q", e.heading)
		}
	}
}

// concerning returns the objects that a packet is about, as YAML.
func concerning(p scenario.Packet, in objects) string {
	svc := owner(p, in)
	if svc == nil {
		return "(no Service has the address)"
	}
	var b strings.Builder
	show := func(o any) {
		text, err := yaml.Marshal(o)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&b, "---\n%s", text)
	}
	show(svc)
	for _, o := range in {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] == svc.Name {
			if (s.AddressType == discoveryv1.AddressTypeIPv4) == p.To.Addr().Is4() {
				show(s)
			}
		}
	}
	return b.String()
}

// owner returns the Service that a packet is sent to.
func owner(p scenario.Packet, in objects) *corev1.Service {
	for _, o := range in {
		svc, ok := o.(*corev1.Service)
		if !ok {
			continue
		}
		for _, k := range destinations(svc) {
			if k.Addr == p.To || uint16(svc.Spec.HealthCheckNodePort) == p.To.Port() || p.To.Addr().IsLoopback() && k.Addr.Port() == p.To.Port() {
				return svc
			}
		}
	}
	return nil
}

// clusterIPs are the addresses of Services.
var clusterIPs = prefixes{netip.MustParsePrefix(services4), netip.MustParsePrefix(services6)}

type prefixes [2]netip.Prefix

// Contains reports whether one of them contains a.
func (p prefixes) Contains(a netip.Addr) bool { return p[0].Contains(a) || p[1].Contains(a) }

// serves reports whether a Service has the port that a packet is sent to.
func serves(p scenario.Packet, in objects) bool {
	svc := owner(p, in)
	return svc != nil && len(svc.Labels) == 0 && slices.ContainsFunc(svc.Spec.Ports, func(q corev1.ServicePort) bool {
		return uint16(q.Port) == p.To.Port() && string(q.Protocol) == p.Proto.String()
	})
}

// unusedExternal reports whether a packet goes to a port of a load balancer's address or an external IP that the table
// does not have.
func unusedExternal(p scenario.Packet, table *service.Table) bool {
	at := service.Key{Addr: p.To, Proto: p.Proto}
	return !clusterIPs.Contains(p.To.Addr()) && !nodePort(p) && !slices.ContainsFunc(table.Sorted(), func(f *service.Frontend) bool { return f.Key() == at })
}

// nodePort reports whether a packet goes to a port of the node.
func nodePort(p scenario.Packet) bool {
	w := &scenario.World
	for _, a := range []netip.Addr{w.Node.V4, w.Node.V6, w.Extra.V4, w.Extra.V6} {
		if p.To.Addr() == a {
			return true
		}
	}
	return p.To.Addr().IsLoopback()
}
