package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/service"
)

// podsOf has the numbers of the Service's pods on three nodes.
var podsOf = []int{1, 1, 4}

// weighted makes node i announce its number of endpoints.
func weighted(i int, w *world) {
	w.Ads[0].LinkBandwidth, w.Count, w.Services[0].Local = true, podsOf[i], true
	all := map[string]bool{"node-1": true, "node-2": true, "node-3": true}
	w.Endpoints = map[string]announce.Endpoints{"web": {Any: true, Ready: all, Serving: all}}
}

// addPods gives the nodes their pods, and each node's kernel the Service's rules of mode nftables.
func (r *rack) addPods() (names []string) {
	r.t.Helper()
	slice := &service.Slice{Name: web, Service: web, Ports: []service.SlicePort{{Name: "http", Proto: api.TCP, Port: 8080}}}
	for i, m := range r.nodes {
		for k := range podsOf[i] {
			a := netip.AddrFrom4([4]byte{10, 244, byte(i + 1), byte(5 + k)})
			pod := r.net.Pod(m.Host, fmt.Sprintf("pod-%d-%d", i+1, k), a)
			pod.Serve("tcp", netip.AddrPortFrom(a, 8080))
			slice.Endpoints = append(slice.Endpoints, service.SliceEndpoint{Addr: a, Node: m.Name, Ready: true, Serving: true})
			names = append(names, pod.Name)
		}
	}
	svc := &service.Service{
		Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, BalancerIPs: []netip.Addr{vip4}, ExternalLocal: true,
		Ports: []service.Port{{Name: "http", Proto: api.TCP, Port: 8080}},
	}
	for _, m := range r.nodes {
		b := service.NewBuilder()
		b.Set(service.Compile(svc, []*service.Slice{slice}, service.Facts{Node: service.Node{Name: m.Name}}))
		must(r.t, m.Do(func() error {
			dp, err := nftables.New(nftables.Config{})
			if err != nil {
				return err
			}
			defer dp.Close()
			_, err = dp.Sync(r.t.Context(), b.Table(service.Settings{}))
			return err
		}))
	}
	return names
}

// nextHops returns the weights of the nodes for an address in the router's kernel.
func (r *rack) nextHops(a netip.Addr) (weights []string) {
	family := "-4"
	if a.Is6() {
		family = "-6"
	}
	route := r.run(r.net.Fabric, "ip", family, "route", "show", a.String())
	for _, m := range r.nodes {
		found := regexp.MustCompile("via " + regexp.QuoteMeta(m.Addr(a.Is4()).String()) + ` .*weight (\d+)`).FindStringSubmatch(route)
		if found == nil {
			return []string{route}
		}
		weights = append(weights, found[1])
	}
	return weights
}

// untilWeights waits until the router's kernel has these weights for both addresses.
func (r *rack) untilWeights(want ...string) {
	r.t.Helper()
	for _, a := range []netip.Addr{vip4, vip6} {
		await(r.t, func() string { return fmt.Sprint(r.nextHops(a)) }, fmt.Sprint(want))
	}
}

// TestWeightsFRR: under externalTrafficPolicy: Local each of the pods, which are spread 1:1:4, gets about the same
// share of a client's connections through FRR, because the nodes announce how many pods they have. The weights stay
// right while a node gets more pods or leaves.
func TestWeightsFRR(t *testing.T) {
	r, f, _ := startFRR(t, 3, "", weighted)
	r.untilWeights("16", "16", "66") // percent
	if text := f.asking("bgpd", "show bgp ipv4 unicast 192.0.2.10/32")(); strings.Count(text, "LB:64501:500000 (4.000 Mbps)") != 2 {
		t.Errorf("FRR does not read both forms of the community:\n%s", text)
	}
	pods := r.addPods()
	shares := map[string]int{}
	const connects = 12000
	for range connects {
		a := r.net.Outside.Ask("tcp", netip.AddrPortFrom(vip4, 8080), 30*time.Second)
		if a.By == "" || !slices.Contains(pods, a.By) {
			t.Fatalf("a connection got %+v", a)
		}
		shares[a.By]++
	}
	least, most := connects, 0
	for _, p := range pods {
		least, most = min(least, shares[p]), max(most, shares[p])
	}
	if t.Logf("%d connections: %v, largest share over smallest %.2f", connects, shares, float64(most)/float64(max(least, 1))); most*10 > least*12 {
		t.Error("the largest share is more than 1.2 times the smallest")
	}
	r.nodes[0].world.Count = 6
	r.tell(0)
	r.untilWeights("54", "9", "36")
}

// TestWeightsBIRD: with the filter of docs/bgp.md BIRD gives the nodes the weights that they announce.
func TestWeightsBIRD(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/bgp.md")
	must(t, err)
	_, filter, found := strings.Cut(string(doc), "    function fairway_weight()")
	filter, _, end := strings.Cut(filter, "\n    }\n")
	if !found || !end {
		t.Fatal("docs/bgp.md has no function fairway_weight() for BIRD")
	}
	r := newRack(t, 3)
	peer := "ipv4 { import filter { fairway_weight(); accept; }; export none; };"
	peer += strings.Replace(peer, "ipv4", "ipv6", 1)
	rest := "function fairway_weight()" + strings.ReplaceAll(filter, "\n    ", "\n") + "\n}\n"
	r.router(peer, rest)
	for i := range r.nodes {
		weighted(i, &r.nodes[i].world)
		r.start(i)
	}
	r.untilWeights("1", "1", "4")
	for n, weight := range map[int]string{2: "2", 7: "7", 16: "16", 17: "16", 40000: "16"} {
		r.nodes[0].world.Count = n
		r.tell(0)
		r.untilWeights(weight, "1", "4")
	}
}
