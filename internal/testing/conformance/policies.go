package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/policytest"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// OpenGated is Open for a datapath that may need a Gate.
type OpenGated func(t testing.TB, gate *flow.Gate) Datapath

// policyPods is the number of endpoints in each family, each with its own Service. The others are the first port of the
// policies, and the NodePort of the first Service.
const (
	policyPods     = 4
	policyPort     = 8080
	policyNodePort = 30080
)

// RunPolicies checks that random NetworkPolicies decide about clients of Services as about clients that call endpoints
// directly: by the client's own address, even if the endpoint sees another one. It takes about five seconds.
func RunPolicies(t *testing.T, open OpenGated) {
	p := newPolicies(t, open)
	for range 60 {
		p.Step(p.compiler)
	}
	var count [2]int
	// Some seeds have few policies for a long time.
	for round := 0; round < 4 || round < 60 && min(count[0], count[1]) < 40; round++ {
		for range 8 {
			p.Step(p.compiler)
		}
		if err := p.enforce(); err != nil {
			t.Fatal(err)
		}
		p.probe(t, &count)
		if err := p.rig.forget(); err != nil {
			t.Fatal(err)
		}
	}
	if t.Logf("%d denied, %d allowed", count[0], count[1]); count[0] < 40 || count[1] < 40 {
		t.Error("the cases are one-sided")
	}
}

// policies is a node with a datapath and a table of policies. The pods of its world are the rig's.
type policies struct {
	*policytest.World
	rig      *rig
	compiler *networkpolicy.Compiler
	kernel   *nftables.Table
	mu       sync.RWMutex // guards table, which a Gate reads
	table    *networkpolicy.Table
}

func newPolicies(t *testing.T, open OpenGated) *policies {
	gate := &flow.Gate{}
	s := newSuite(t, func(t testing.TB) Datapath { return open(t, gate) })
	endpoints := map[service.Key]string{}
	var frontends []*service.Frontend
	p := &policies{World: policytest.New(testnet.Random(t)), compiler: networkpolicy.New("node-1"), kernel: nftables.New()}
	t.Cleanup(p.kernel.Close)
	p.FirstPort, p.Addrs, p.Tiers = policyPort, nil, true
	places := map[api.Name][]netip.Addr{}
	for i := range policyPods {
		for _, is4 := range []bool{true, false} {
			addr, node := scenario.PodAddr(i, is4)
			name := api.Name{Namespace: []string{"x", "y"}[i%2], Name: fmt.Sprint(1 + i/2)}
			places[name] = append(places[name], addr)
			p.Addrs = append(p.Addrs, addr)
			for _, proto := range []api.Proto{api.TCP, api.UDP} {
				at := netip.AddrPortFrom(addr, policyPort+uint16(i))
				endpoints[service.Key{Addr: at, Proto: proto}] = node
				frontends = append(frontends, policyFrontends(i, at, proto, node == "node-1")...)
			}
		}
	}
	w := &scenario.World
	places[api.Name{Namespace: "z", Name: "1"}] = []netip.Addr{w.Pod.V4, w.Pod.V6}
	p.Addrs = append(p.Addrs, w.Pod.V4, w.Pod.V6, w.Outside.V4, w.Outside.V6, w.Node.V4, w.Node.V6)
	p.rig = newRig(t, s, "node-1", endpoints)
	p.Place = func(pod api.Name) (string, []netip.Addr) {
		if all := places[pod]; len(all) > 0 {
			if h := p.rig.hosts[all[0]]; h.Node() == p.rig.node {
				return "node-1", all
			}
			return "node-2", all
		}
		return "", nil
	}
	gate.Decide(func(proto api.Proto, client netip.Addr, endpoint netip.AddrPort) bool {
		return p.allows(proto, client, endpoint)
	})
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	nodePorts := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	if err := p.rig.sync(service.NewTable(service.Settings{Pods: pods, NodePorts: nodePorts}, frontends)); err != nil {
		t.Fatal(err)
	}
	return p
}

// policyFrontends returns a ClusterIP and a NodePort with one endpoint.
func policyFrontends(i int, endpoint netip.AddrPort, proto api.Proto, local bool) (all []*service.Frontend) {
	route := &service.Route{Masquerade: service.MasqueradeOffCluster, Endpoints: []service.Endpoint{{Addr: endpoint, Local: local}}}
	for _, at := range policyTargets(i, endpoint.Addr().Is4())[:2] {
		if at.Addr() == scenario.World.Node.Addr(at.Addr().Is4()) {
			at = service.Key{Addr: at}.NodePort().Addr
		}
		all = append(all, &service.Frontend{
			Addr: at, Proto: proto, Internal: route, External: route,
			Service: api.PortName{Name: api.Name{Namespace: "default", Name: fmt.Sprint("web-", i)}},
		})
	}
	return all
}

// policyTargets returns the addresses by which clients call an endpoint: a ClusterIP, a NodePort, and its own.
func policyTargets(i int, is4 bool) []netip.AddrPort {
	clusterIP := netip.AddrFrom4([4]byte{10, 96, 1, byte(1 + i)})
	if !is4 {
		clusterIP = netip.MustParseAddr(fmt.Sprintf("fd00:10:96::1:%d", 1+i))
	}
	pod, _ := scenario.PodAddr(i, is4)
	return []netip.AddrPort{
		netip.AddrPortFrom(clusterIP, 80),
		netip.AddrPortFrom(scenario.World.Node.Addr(is4), policyNodePort+uint16(i)),
		netip.AddrPortFrom(pod, policyPort+uint16(i)),
	}
}

// enforce makes the kernel and the Gate decide by the present objects.
func (p *policies) enforce() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	want, changes := p.compiler.Compile()
	p.table = want
	return p.rig.node.Do(func() error {
		_, err := p.kernel.Sync(context.Background(), want, changes)
		p.compiler.Take()
		return err
	})
}

func (p *policies) allows(proto api.Proto, client netip.Addr, endpoint netip.AddrPort) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return networkpolicy.Lookup(p.table, networkpolicy.Packet{Src: client, Dst: endpoint.Addr(), Proto: proto, Port: endpoint.Port()}).Allowed()
}

// probe lets every client on the node, and one outside, call every endpoint by all its addresses.
func (p *policies) probe(t *testing.T, count *[2]int) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range policyPods {
		for _, is4 := range []bool{true, false} {
			endpoint := policyTargets(i, is4)[2]
			own, _ := scenario.PodAddr(0, is4)
			clients := []netip.Addr{own, scenario.World.Pod.Addr(is4), scenario.World.Node.Addr(is4), scenario.World.Outside.Addr(is4)}
			for _, client := range clients {
				for _, proto := range []api.Proto{api.TCP, api.UDP} {
					want := client == scenario.World.Node.Addr(is4) || p.allows(proto, client, endpoint)
					for _, to := range policyTargets(i, is4) {
						if to == endpoint && client == own && client == endpoint.Addr() {
							continue // the packet does not leave the pod
						}
						slots <- struct{}{}
						if want {
							count[1]++
						} else {
							count[0]++
						}
						wg.Go(func() {
							defer func() { <-slots }()
							p.ask(t, proto, client, to, endpoint, want)
						})
					}
				}
			}
		}
	}
	wg.Wait()
}

func (p *policies) ask(t *testing.T, proto api.Proto, client netip.Addr, to, endpoint netip.AddrPort, want bool) {
	patience := 20 * time.Second
	if !want {
		patience = testnet.Patience
	}
	got := p.rig.hosts[client].Ask(network(proto), to, patience)
	if (got.Outcome == testnet.Answered) != want {
		t.Errorf("%v from %v to %v for %v: allowed %v, and %v", proto, client, to, endpoint, want, got)
	}
}
