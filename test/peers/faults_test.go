package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestKilled kills our agent with -9 again and again while the cluster changes. Flows through a Service that stays must
// not notice. In the end the result equals that of a kube-proxy that was never killed.
func TestKilled(t *testing.T) {
	t.Parallel()
	o, flows := newFault(t)
	rng := rand.New(rand.NewPCG(1, 0))
	for round := range uint64(12) {
		g := newGenerator(1000 + round)
		o.apply(rng, g.cluster(), o.zone)
		// The time covers the first list, the first pass, and some time after it.
		flows.hold(time.Duration(rng.IntN(400)) * time.Millisecond)
		o.ours.proc.Kill()
		if round%3 == 0 { // changes that no agent sees
			o.apply(rng, g.change(o.holds), o.zone)
		}
		o.ours.start(t)
	}
	o.settle(t, flows, 2000)
}

// TestAPIServerGone takes the API server away from our agent, for the time in the variable GONE. Flows continue, new
// ones reach their endpoints, and an agent that starts meanwhile changes nothing. When the server is back, the agent
// applies the changes.
func TestAPIServerGone(t *testing.T) {
	t.Parallel()
	o, flows := newFault(t)
	gone := time.Duration(number(t, "GONE", 20)) * time.Second
	rng := rand.New(rand.NewPCG(2, 0))
	o.ours.leave()
	o.apply(rng, newGenerator(3000).cluster(), o.zone)
	for i := range 4 {
		flows.hold(gone / 4)
		flows.fresh()
		if i == 1 {
			o.ours.proc.Kill()
			o.ours.start(t)
		}
	}
	o.ours.listen(t, o.api)
	o.settle(t, flows, 3001)
}

// newFault starts both programs with a Service that stays, and flows through it.
func newFault(t *testing.T) (*oracle, *flows) {
	t.Helper()
	o := newOracle(t, configured(podsKnown), configured(podsKnown))
	o.putStable()
	o.apply(rand.New(rand.NewPCG(0, 0)), newGenerator(999).cluster(), o.zone)
	if err := o.await(o.zone); err != nil {
		t.Fatal(err)
	}
	return o, openFlows(t, o.ours)
}

// settle gives both programs a last cluster and compares them. The flows must continue until then.
func (o *oracle) settle(t *testing.T, flows *flows, seed uint64) {
	t.Helper()
	g := newGenerator(seed)
	want := g.cluster()
	o.apply(g.Rand, want, o.zone)
	if err := o.await(o.zone); err != nil {
		t.Fatalf("%v\nfairway says:\n%s", err, end(o.ours.proc.Output()))
	}
	flows.hold(0)
	flows.fresh()
	flows.close()
	if err := o.forget(); err != nil {
		t.Fatal(err)
	}
	table := o.table(want, o.zone)
	differences, sent := o.compare(t, want, o.questions(table, want, g.sample(packets(want), table, 4*perState)))
	if found := o.report(t, seed, 0, want, differences); len(found) == 0 {
		t.Logf("no difference in %v", sent)
	}
}

// Addresses of the Service that stays.
const (
	stable4, stable6                   = "10.96.100.1", "fd00:10:96::6401"
	stableLB4, stableLB6               = "203.0.113.200", "2001:db8:9::200"
	stableTCP, stableUDP         int32 = 80, 53
	stableNodeTCP, stableNodeUDP int32 = 32700, 32701
)

func (o *oracle) putStable() {
	name := metav1.ObjectMeta{Namespace: "default", Name: "stable"}
	svc := &corev1.Service{ObjectMeta: name, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: stable4, ClusterIPs: []string{stable4, stable6},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Ports: []corev1.ServicePort{
			{Name: "http", Protocol: corev1.ProtocolTCP, Port: stableTCP, NodePort: stableNodeTCP},
			{Name: "dns", Protocol: corev1.ProtocolUDP, Port: stableUDP, NodePort: stableNodeUDP},
		},
	}}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: stableLB4}, {IP: stableLB6}}
	o.api.Put(svc)
	for _, is4 := range []bool{true, false} {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("stable-%v", is4), Labels: map[string]string{discoveryv1.LabelServiceName: "stable"},
			},
			AddressType: discoveryv1.AddressTypeIPv6,
			Ports: []discoveryv1.EndpointPort{
				{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(targets["http"][0])},
				{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(targets["dns"][0])},
			},
		}
		if is4 {
			s.AddressType = discoveryv1.AddressTypeIPv4
		}
		for i := range pods {
			addr, on := endpointAddr(i, is4)
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &on})
		}
		o.api.Put(s)
	}
}

// flows has connections through the Service that stays, from every place.
type flows struct {
	t   *testing.T
	tw  *twin
	all []*flow
}

// A flow is a TCP connection, or a UDP socket that sends to one address.
type flow struct {
	name string
	conn *testnet.Conn
	by   string // the endpoint that answered first
}

// far is how long a flow may take for one answer. It is enough on any machine.
const far = 30 * time.Second

func openFlows(t *testing.T, tw *twin) *flows {
	t.Helper()
	f := &flows{t: t, tw: tw}
	t.Cleanup(f.close)
	f.each(func(name, network string, from *testnet.Host, to netip.AddrPort) {
		conn, err := from.Dial(network, to, far)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fl := &flow{name: name, conn: conn}
		f.all = append(f.all, fl)
		a := conn.Ask(far)
		if a.Outcome != testnet.Answered {
			t.Fatalf("%s: %v", name, a)
		}
		fl.by = a.By
	})
	return f
}

// each calls f for every frontend of the Service that stays.
func (f *flows) each(do func(name, network string, from *testnet.Host, to netip.AddrPort)) {
	w := &scenario.World
	for _, is4 := range []bool{true, false} {
		cluster, lb, node := netip.MustParseAddr(stable6), netip.MustParseAddr(stableLB6), w.Node.Addr(is4)
		if is4 {
			cluster, lb = netip.MustParseAddr(stable4), netip.MustParseAddr(stableLB4)
		}
		for _, network := range []string{"tcp", "udp"} {
			port, nodePort := stableTCP, stableNodeTCP
			if network == "udp" {
				port, nodePort = stableUDP, stableNodeUDP
			}
			for _, way := range []struct {
				from scenario.Place
				to   netip.Addr
				port int32
			}{
				{w.Pod, cluster, port}, {w.Node, cluster, port}, {w.Pod, node, nodePort},
				{w.Outside, node, nodePort}, {w.Outside, lb, port}, {w.PodRemote, lb, port},
			} {
				to := netip.AddrPortFrom(way.to, uint16(way.port))
				do(fmt.Sprintf("%s from %s to %v", network, way.from.Name, to), network, f.tw.hosts[way.from.Addr(is4)], to)
			}
		}
	}
}

// hold uses all flows for a time, at least once. The endpoint that answered a flow first must answer it again.
func (f *flows) hold(d time.Duration) {
	f.t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		for _, fl := range f.all {
			if a := fl.conn.Ask(far); a.Outcome != testnet.Answered || a.By != fl.by {
				f.t.Fatalf("%s was answered by %s, now: %v", fl.name, fl.by, a)
			}
		}
		if time.Since(start) >= d {
			return
		}
	}
}

// fresh opens a new flow of each kind.
func (f *flows) fresh() {
	f.t.Helper()
	f.each(func(name, network string, from *testnet.Host, to netip.AddrPort) {
		if a := from.Ask(network, to, far); a.Outcome != testnet.Answered {
			f.t.Errorf("a new flow, %s: %v", name, a)
		}
	})
}

func (f *flows) close() {
	for _, fl := range f.all {
		fl.conn.Close()
	}
	f.all = nil
}
