package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/test/peers/apiserver"
	"github.com/fairway-net/fairway/test/peers/volley"
)

// An oracle is both twins, fed by one API server.
type oracle struct {
	api          *apiserver.Server
	theirs, ours *twin
	holds        objects        // the objects of the API server
	zone         string         // the node's zone
	marks        int32          // how often the sentinel has changed
	config       configuration  // kube-proxy's
	settings     *config.Config // ours
	looks        []look
	explained    map[string]int
}

// newOracle starts both programs. A test of the oracle itself gives them different configurations.
func newOracle(t testing.TB, theirs, ours configuration) *oracle {
	t.Helper()
	o := &oracle{api: apiserver.New(), holds: objects{}, config: theirs, looks: looks, explained: map[string]int{}}
	o.api.Put(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{services4, services6}},
	})
	o.api.Put(o.node(""))
	master := []string{"--master", "http://" + apiPort, "--config"}
	o.theirs = newTwin(t, o.api, "kube-proxy", append([]string{binary(t, "kube-proxy")}, append(master, theirs.file(t, theirs.mode))...)...)
	file := ours.file(t, ours.ours)
	o.settings = load(t, file)
	o.ours = newTwin(t, o.api, "fairway", append([]string{binary(t, "fairway"), "agent"}, append(master, file)...)...)
	// kube-proxy may miss changes while it starts: the node's zone (its handler
	// is registered after the informer runs) and, until the next full pass, ServiceCIDRs.
	// A zone that changes later makes a full pass.
	for _, zone := range []string{"", "start"} {
		o.apply(rand.New(rand.NewPCG(1, 0)), objects{}, zone)
		if err := o.await(zone); err != nil {
			t.Fatalf("start: %v\nkube-proxy says:\n%s\nfairway says:\n%s", err, end(o.theirs.proc.Output()), end(o.ours.proc.Output()))
		}
	}
	return o
}

func (o *oracle) node(zone string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:10:244:1::/64"}},
	}
	if zone != "" {
		n.Labels[corev1.LabelTopologyZone] = zone
	}
	for _, is4 := range []bool{true, false} {
		if !is4 && o.config.one {
			continue
		}
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: scenario.World.Node.Addr(is4).String()})
	}
	return n
}

// seed shows both programs a cluster and then a change of it, and compares them in
// each state.
func (o *oracle) seed(t *testing.T, seed uint64, judge func(step int, in objects, all []difference)) (sent tally) {
	t.Helper()
	g := newGenerator(seed)
	zone := ""
	if !g.one(4) {
		zone = g.zones[0]
	}
	cluster := g.cluster()
	for step, want := range []objects{cluster, g.change(cluster)} {
		o.apply(g.Rand, want, zone)
		if err := o.await(zone); err != nil {
			t.Fatalf("seed %d, step %d: %v\nkube-proxy says:\n%s\nfairway says:\n%s", seed, step, err,
				end(o.theirs.proc.Output()), end(o.ours.proc.Output()))
		}
		if err := o.forget(); err != nil {
			t.Fatal(err)
		}
		table := o.table(want, zone)
		differences, n := o.compare(t, want, o.questions(table, want, g.sample(packets(want), table, perState)))
		sent.add(n)
		judge(step, want, append(differences, o.health(want)...))
	}
	return sent
}

func end(text string) string { return text[max(0, len(text)-3000):] }

// report fails the test for each difference without a documented reason, and returns them.
func (o *oracle) report(t *testing.T, seed uint64, step int, in objects, differences []difference) (found []string) {
	t.Helper()
	for _, d := range differences {
		if name := explain(d, in, o.config); name != "" {
			o.explained[name]++
			continue
		}
		found = append(found, fmt.Sprintf("seed %d, step %d, %s: %v", seed, step, o.config.name, d))
		if len(found) <= 3 {
			t.Errorf("seed %d, step %d: %v\n%s", seed, step, d, concerning(d.packet, in))
		}
	}
	return found
}

// apply changes the objects of the API server to want, in an order that depends on the seed.
func (o *oracle) apply(rng *rand.Rand, want objects, zone string) {
	if zone != o.zone {
		o.api.Put(o.node(zone))
	}
	var names []string
	for name := range o.holds {
		names = append(names, name)
	}
	for name := range want {
		if _, ok := o.holds[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		was, is := o.holds[name], want[name]
		switch {
		case is == nil:
			o.api.Delete(was)
		case was == nil || !reflect.DeepEqual(was, is):
			o.api.Put(is)
		}
	}
	o.holds = want
	o.mark(zone)
}

// The sentinel is a Service that changes last. A proxy that serves its new port has seen all earlier changes. Its
// endpoints' hints tell whether the proxy knows the node's zone.
const sentinelName = "zz-sentinel"

func (o *oracle) mark(zone string) {
	o.marks++
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: sentinelName},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.255.1", ClusterIPs: []string{"10.96.255.1", "fd00:10:96::ff01"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:      []corev1.ServicePort{{Name: o.markName(), Protocol: corev1.ProtocolTCP, Port: o.markPort()}},
		},
	}
	o.api.Put(svc)
	for _, is4 := range []bool{true, false} {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("%s-%v", sentinelName, is4),
				Labels: map[string]string{discoveryv1.LabelServiceName: sentinelName},
			},
			AddressType: discoveryv1.AddressTypeIPv6,
			Ports:       []discoveryv1.EndpointPort{{Name: new(o.markName()), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
		}
		if is4 {
			s.AddressType = discoveryv1.AddressTypeIPv4
		}
		// The first endpoint has a hint for the old zone, and the second for the new zone.
		for i, z := range []string{o.zone, zone} {
			addr, on := endpointAddr(i, is4)
			if z == "" {
				z = "nowhere"
			}
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{addr.String()}, NodeName: &on,
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: z}}},
			})
		}
		o.api.Put(s)
	}
}

func (o *oracle) markName() string { return fmt.Sprintf("m%d", o.marks) }
func (o *oracle) markPort() int32  { return 40000 + o.marks%20000 }

// catchUp is how long a program may take for a change. kube-proxy waits 30 s after a failed pass.
const catchUp = 2 * time.Minute

// await waits until both programs have applied all changes of apply.
func (o *oracle) await(zone string) error {
	deadline := time.Now().Add(catchUp)
	for _, tw := range []*twin{o.theirs, o.ours} {
		for _, text := range []string{"10.96.255.1", "fd00:10:96::ff01"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(text), uint16(o.markPort()))
			for {
				done, err := o.caughtUp(tw, to, zone)
				if err == nil && !done {
					err = tw.proc.Alive()
				}
				if err != nil {
					return err
				}
				if done {
					break
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("%s has not caught up after %v: %v is not served as it should", tw.name, catchUp, to)
				}
				time.Sleep(2 * time.Millisecond) // poll
			}
		}
	}
	// What is much at once is written in steps, of which the first may have the sentinel.
	for !strings.Contains(o.ours.get("10256/statusz"), `"inSync":true`) {
		if err := o.ours.proc.Alive(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has not caught up after %v: its status does not say that it is in sync", o.ours.name, catchUp)
		}
		time.Sleep(2 * time.Millisecond)
	}
	o.zone = zone
	return nil
}

// caughtUp reports whether a program serves the sentinel as in the zone. A fair choice misses one of two endpoints in
// 48 tries less than once in 10^14.
func (o *oracle) caughtUp(tw *twin, to netip.AddrPort, zone string) (bool, error) {
	probes := make([]volley.Probe, 48)
	pod := scenario.World.Pod
	for i := range probes {
		probes[i] = volley.Probe{From: tw.stations[pod.Name], Src: pod.Addr(to.Addr().Is4()), To: to, Proto: api.TCP, Likely: true}
	}
	// First ask once: if the port is not served yet, no more requests are needed.
	for _, part := range [][]volley.Probe{probes[:1], probes} {
		results, err := tw.field.Fire(part, 50*time.Millisecond, 0)
		if err != nil {
			return false, err
		}
		first, second := 0, 0
		for _, r := range results {
			switch {
			case r.Verdict != volley.Answered || r.By == nil:
				return false, nil
			case r.By.Name == "pod-0":
				first++
			default:
				second++
			}
		}
		if len(part) == 1 {
			continue
		}
		switch {
		case zone == o.zone && zone != "": // both are hinted for it
			return true, nil
		case zone == "":
			return first > 0 && second > 0, nil
		}
		return first == 0, nil
	}
	return false, nil
}

func (o *oracle) forget() error {
	if err := o.theirs.forget(); err != nil {
		return fmt.Errorf("forget connections: %w", err)
	}
	if err := o.ours.forget(); err != nil {
		return fmt.Errorf("forget connections: %w", err)
	}
	return nil
}

// table returns the table of the objects. It has the number of endpoints to wait for. It does not decide which proxy is
// right.
func (o *oracle) table(in objects, zone string) *service.Table {
	n := kube.ConvertNode(o.node(zone))
	view := o.settings.Node(n.Zone, n.Addrs, n.PodCIDRs)
	view.Settings.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix(services4), netip.MustParsePrefix(services6)}
	if o.config.pods != nil {
		view.Settings.Pods, view.Settings.PodInterfaces = o.config.pods, nil
	}
	state := scenario.NewState(service.Facts{Node: view})
	for _, obj := range in {
		switch obj := obj.(type) {
		case *corev1.Service:
			if len(obj.Labels) == 0 { // none that names another proxy
				state.Apply(scenario.Event{Service: kube.ConvertService(obj)})
			}
		case *discoveryv1.EndpointSlice:
			state.Apply(scenario.Event{Slice: kube.ConvertSlice(obj)})
		}
	}
	return state.Table()
}
