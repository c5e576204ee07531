package peers

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/scenario"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testnet"
	"github.com/fairway-net/fairway/test/peers/apiserver"
)

var (
	seeds     = flag.Int("seeds", 20, "how many random clusters")
	firstSeed = flag.Uint64("seed", 1, "the first seed")
	perSeed   = flag.Int("packets", 300, "packets for each state of a cluster")
	budget    = flag.Duration("budget", 20*time.Minute, "begin no new seed after this time")
)

// A configuration is what both programs are started with; seeds take turns.
type configuration struct {
	name, mode string // mode is kube-proxy's; ours is always nftables
	yaml       string
	one        bool // the node has no IPv6 address that the API knows
}

const podsKnown = "clusterCIDR: 10.244.0.0/16,fd00:10:244::/48\n"

// rangeOnly leaves the node's main address out.
const rangeOnly = "pods unknown, NodePorts on a range"

var configurations = []configuration{
	{name: "pods known", mode: "nftables", yaml: podsKnown + `nodePortAddresses: [primary]`},
	{name: "pods of IPv4 known, NodePorts on all", mode: "nftables", yaml: `
clusterCIDR: 10.244.0.0/16
nodePortAddresses: ["0.0.0.0/0", "::/0"]`},
	{name: rangeOnly, mode: "nftables", yaml: `
nodePortAddresses: ["192.0.2.0/24", "2001:db8:2::/64"]`},
	{name: "masquerade all", mode: "nftables", yaml: podsKnown + `
nodePortAddresses: [primary]
`},
	{name: "node with IPv4 only", mode: "nftables", one: true, yaml: podsKnown + `nodePortAddresses: [primary]`},
	{name: "kube-proxy in mode iptables", mode: "iptables", yaml: podsKnown + `nodePortAddresses: ["172.18.0.0/16", "fd00:172:18::/64"]`},
}

// file writes the KubeProxyConfiguration of a mode. It leaves the sysctls of conntrack
// alone, which are the machine's.
func (c configuration) file(t *testing.T, mode string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: node-1
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 10ms, syncPeriod: 30s, masqueradeAll: %v}
iptables: {minSyncPeriod: 10ms, syncPeriod: 30s, localhostNodePorts: false}
%s
`, mode, c.name == "masquerade all", c.yaml)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSamePackets holds our agent against kube-proxy.
func TestSamePackets(t *testing.T) {
	start := time.Now()
	var total tally
	done := 0
	for index, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			o := newOracle(t, c, c)
			for i := index; i < *seeds && time.Since(start) < *budget; i += len(configurations) {
				seed := *firstSeed + uint64(i)
				total.add(o.seed(t, seed, func(step int, in objects, all []difference) {
					o.report(t, seed, step, in, all)
				}))
				done++
			}
		})
	}
	t.Logf("%d of %d seeds from %d: %v in %v", done, *seeds, *firstSeed, total, time.Since(start).Round(time.Second))
	if done == 0 {
		t.Error("nothing was compared")
	}
}

// TestOracleNotices holds the oracle itself: programs with different orders differ.
func TestOracleNotices(t *testing.T) {
	for _, pair := range [][2]int{{0, 3}, {0, 2}, {1, 0}} {
		theirs, ours := configurations[pair[0]], configurations[pair[1]]
		t.Run(theirs.name+" against "+ours.name, func(t *testing.T) {
			found := 0
			sent := newOracle(t, theirs, ours).seed(t, *firstSeed, func(_ int, _ objects, all []difference) {
				found += len(all)
				if len(all) > 0 {
					t.Logf("for example %v", all[0])
				}
			})
			if found < 3 {
				t.Errorf("found %d differences among %v", found, sent)
			}
		})
	}
}

// An oracle is both twins, fed by one API server.
type oracle struct {
	api          *apiserver.Server
	theirs, ours *twin
	holds        objects // what the API server has
	zone         string  // of the node
	marks        int32   // how often the sentinel has changed
	config       configuration
	explained    map[string]int
}

// newOracle starts both; a test of the oracle itself gives them different orders.
func newOracle(t *testing.T, theirs, ours configuration) *oracle {
	t.Helper()
	o := &oracle{api: apiserver.New(), holds: objects{}, config: theirs, explained: map[string]int{}}
	o.api.Put(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{services4, services6}},
	})
	o.api.Put(o.node(""))
	master := []string{"--master", "http://" + apiPort, "--config"}
	o.theirs = newTwin(t, o.api, "kube-proxy", append([]string{binary(t, "kube-proxy")}, append(master, theirs.file(t, theirs.mode))...)...)
	o.ours = newTwin(t, o.api, "fairway", append([]string{binary(t, "fairway"), "agent"}, append(master, ours.file(t, "nftables"))...)...)
	t.Cleanup(func() {
		for name, n := range o.explained {
			t.Logf("%d packets differ as documented: %s", n, name)
		}
	})
	return o
}

func (o *oracle) node(zone string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{}}}
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
		table, err := o.table(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		differences, n := compare(o.theirs, o.ours, table, want, g.sample(packets(want), table, *perSeed))
		sent.add(n)
		judge(step, want, append(differences, o.health(want)...))
	}
	return sent
}

func end(text string) string { return text[max(0, len(text)-3000):] }

func (o *oracle) report(t *testing.T, seed uint64, step int, in objects, differences []difference) {
	t.Helper()
	shown := 0
	for _, d := range differences {
		if name := explain(d, in, o.config); name != "" {
			o.explained[name]++
			continue
		}
		if shown++; shown <= 5 {
			t.Errorf("seed %d, step %d (config %q): %v\n%s", seed, step, t.Name(), d, concerning(d.packet, in))
		}
	}
	if shown > 5 {
		t.Errorf("seed %d, step %d: %d differences in all", seed, step, shown)
	}
}

// apply makes the API server hold want, in an order that the seed decides.
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

// The sentinel is a Service that changes last: who serves its new port has seen all
// that changed before. Its endpoints' hints tell whether the node's zone is known.
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
		// The first is hinted for the zone that was, the second for the one that is.
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

// await waits until both programs have done all that apply has put.
func (o *oracle) await(zone string) error {
	deadline := time.Now().Add(30 * time.Second)
	for _, tw := range []*twin{o.theirs, o.ours} {
		for _, text := range []string{"10.96.255.1", "fd00:10:96::ff01"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(text), uint16(o.markPort()))
			for !o.caughtUp(tw, to, zone) {
				if err := tw.proc.Alive(); err != nil {
					return err
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("%s has not caught up after 30 s: %v is not served as it should", tw.name, to)
				}
				time.Sleep(5 * time.Millisecond) // between two looks at a condition
			}
		}
	}
	o.zone = zone
	return nil
}

// caughtUp reports whether the sentinel is served as in the zone.
func (o *oracle) caughtUp(tw *twin, to netip.AddrPort, zone string) bool {
	first, second := 0, 0
	for range 24 {
		a := tw.hosts[scenario.World.Pod.V4].Ask("tcp", to, 100*time.Millisecond)
		if a.Outcome != testnet.Answered {
			return false
		}
		if a.By == "pod-0" {
			first++
		} else {
			second++
		}
	}
	switch {
	case zone == o.zone && zone != "": // both are hinted for it
		return true
	case zone == "":
		return first > 0 && second > 0
	}
	return first == 0
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

// table reads what our agent has programmed: it tells how many endpoints to wait for,
// not who is right.
func (o *oracle) table(ctx context.Context) (table *service.Table, err error) {
	dp, err := nftables.New(nftables.Config{})
	if err != nil {
		return nil, err
	}
	defer dp.Close()
	err = o.ours.node.Do(func() error {
		table, err = dp.Dump(ctx)
		return err
	})
	return table, err
}
