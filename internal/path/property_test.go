package path_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/policytest"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// randomNode returns node-I with the pods of 10.244.I.0/24.
func randomNode(rng *rand.Rand, i int) *path.Node {
	name := fmt.Sprintf("node-%d", i)
	addr := netip.AddrFrom4([4]byte{192, 168, 49, byte(i)})
	n := service.Node{
		Name: name, Zone: []string{"a", "b", ""}[rng.IntN(3)], OwnAddrs: service.NewAddrSet(addr), NodeAddrs: service.NewAddrSet(addr),
		Settings: service.Settings{NodeIPs: []netip.Addr{addr}, NodePorts: []netip.Prefix{netip.PrefixFrom(addr, 32)}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}},
		Primary4: addr, Limits: service.DefaultLimits(),
	}
	if rng.IntN(4) > 0 {
		n.Settings.Pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	}
	return &path.Node{Name: name, Addrs: []netip.Addr{addr}, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)}, Facts: service.Facts{Node: n}}
}

// randomCluster has three nodes, pods and policies of a policytest.World, and Services to some of the pods.
func randomCluster(rng *rand.Rand) *path.Cluster {
	w := policytest.New(rng)
	serial := map[int]byte{}
	w.Place = func(api.Name) (string, []netip.Addr) {
		i := 1 + rng.IntN(3)
		serial[i]++
		return fmt.Sprintf("node-%d", i), []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(i), serial[i] + 1})}
	}
	for range 60 {
		w.Step()
	}
	c := &path.Cluster{
		Mode: "nftables", PodNetwork: "routes", Services: map[api.Name]*path.Service{}, Slices: map[api.Name][]*service.Slice{},
		Pods: map[api.Name]*path.Pod{}, Nodes: map[string]*path.Node{}, Policies: &w.Cluster,
	}
	for i := 1; i <= 3; i++ {
		n := randomNode(rng, i)
		c.Nodes[n.Name] = n
		w.Nodes[n.Name] = &networkpolicy.Node{Name: n.Name, Addrs: n.Addrs}
	}
	names := slices.SortedFunc(maps.Keys(w.Pods), api.Name.Compare)
	for _, name := range names {
		c.Pods[name] = &path.Pod{Pod: w.Pods[name], Ready: true, Phase: "Running"}
	}
	for i := range 3 {
		randomService(rng, c, names, i)
	}
	return c
}

func randomService(rng *rand.Rand, c *path.Cluster, pods []api.Name, i int) {
	name := api.Name{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}
	port := service.Port{Name: "http", Proto: api.TCP, Port: 80, NodePort: uint16(30080 + i)}
	s := &service.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})}, Ports: []service.Port{port},
		BalancerIPs:   []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i + 1)})},
		InternalLocal: rng.IntN(3) == 0, ExternalLocal: rng.IntN(2) == 0, Weighted: rng.IntN(3) == 0,
	}
	if rng.IntN(4) == 0 {
		s.Sources = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/25")}
	}
	c.Services[name] = &path.Service{Service: s, Selector: map[string]string{"app": "a"}, Ports: []path.ServicePort{{Port: port, Target: 8080}}}
	slice := &service.Slice{Name: name, Service: name, Ports: []service.SlicePort{{Name: "http", Proto: api.TCP, Port: uint16(8000 + rng.IntN(3))}}}
	var texts []string
	for _, n := range pods {
		p := c.Pods[n]
		if rng.IntN(3) > 0 || len(p.Addrs) == 0 {
			continue
		}
		e := service.SliceEndpoint{Addr: p.Addrs[0], Node: p.Node, Ready: rng.IntN(3) > 0, Serving: rng.IntN(2) == 0, Terminating: rng.IntN(3) == 0, HasWeight: true, Weight: uint16(rng.IntN(3))}
		if rng.IntN(2) == 0 {
			e.ZoneHints = []string{[]string{"a", "b"}[rng.IntN(2)]}
		}
		slice.Endpoints, texts = append(slice.Endpoints, e), append(texts, n.Name)
	}
	slice.Pods = service.PackPodNames(texts)
	c.Slices[name] = []*service.Slice{slice}
}

// reference decides without package path: it compiles the table of the node, and asks the slow evaluator of policies.
func reference(c *path.Cluster, node *path.Node, pod *path.Pod, src netip.Addr, to netip.AddrPort) (path.State, []string) {
	b := service.NewBuilder()
	for _, s := range c.Services {
		b.Set(service.Compile(s.Service, c.Slices[s.Name], node.Facts))
	}
	d := service.Lookup(b.Table(node.Facts.Settings), service.Packet{From: src, To: to, Proto: api.TCP, FromNode: pod == nil && node.Addrs[0] == src, ToNode: node.Addrs[0] == to.Addr()})
	switch d.Action {
	case service.Reject:
		return path.Refused, nil
	case service.Drop:
		return path.Dropped, nil
	case service.Pass:
		return path.Accepted, nil
	}
	var all []string
	reached := 0
	for _, e := range d.Route.Endpoints {
		all = append(all, e.Addr.String())
		seen := src
		var end *path.Pod
		for _, p := range c.Pods {
			if slices.Contains(p.Addrs, e.Addr.Addr()) {
				end = p
			}
		}
		if d.Masquerades(e) && end.Node != node.Name {
			seen = node.Addrs[0]
		}
		if passes(c, node, pod, end, seen, e.Addr) {
			reached++
		}
	}
	switch reached {
	case 0:
		return path.Dropped, all
	case len(all):
		return path.Delivered, all
	}
	return path.Sometimes, all
}

// passes evaluates the policies of both ends.
func passes(c *path.Cluster, node *path.Node, pod, end *path.Pod, seen netip.Addr, to netip.AddrPort) bool {
	if pod != nil {
		j := c.Policies.Evaluate(networkpolicy.Peering{Pod: pod.Pod, Direction: networkpolicy.Egress, Peer: to.Addr(), PeerPod: end.Pod, Proto: api.TCP, Port: to.Port(), Exempt: pod == end})
		if !j.Allowed() {
			return false
		}
	} else if seen == node.Addrs[0] && end.Node == node.Name {
		return true
	}
	p := networkpolicy.Peering{Pod: end.Pod, Direction: networkpolicy.Ingress, Peer: seen, Proto: api.TCP, Port: to.Port(), Exempt: pod == end}
	if pod != nil && slices.Contains(pod.Addrs, seen) {
		p.PeerPod = pod.Pod
	}
	j := c.Policies.Evaluate(p)
	return j.Allowed()
}

// TestRandom: on random clusters the prediction is what the tables of Services and the policies say.
func TestRandom(t *testing.T) {
	rng := testnet.Random(t)
	count := map[path.State]int{}
	for range 200 {
		c := randomCluster(rand.New(rand.NewPCG(rng.Uint64(), 0)))
		pods := slices.SortedFunc(maps.Keys(c.Pods), api.Name.Compare)
		for range 20 {
			node := c.Nodes[fmt.Sprintf("node-%d", 1+rng.IntN(3))]
			var pod *path.Pod
			q := path.Question{From: path.Place{Kind: "Node", Node: node.Name}}
			src := node.Addrs[0]
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + rng.IntN(4))}), uint16(80+rng.IntN(8)/7))
			switch rng.IntN(4) {
			case 0:
				q.From = path.Place{Kind: "Outside", Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(rng.IntN(256))})}
				src, to = q.From.Addr, netip.AddrPortFrom(node.Addrs[0], uint16(30080+rng.IntN(4)))
			case 1, 2:
				if len(pods) == 0 {
					continue
				}
				if pod = c.Pods[pods[rng.IntN(len(pods))]]; len(pod.Addrs) == 0 {
					continue
				}
				q.From, node, src = path.Place{Kind: "Pod", Pod: pod.Name}, c.Nodes[pod.Node], pod.Addrs[0]
				if rng.IntN(4) == 0 {
					to = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + rng.IntN(3))}), 80)
				}
			}
			q.To = path.Destination{Asked: to.String(), Addr: to.Addr(), Port: fmt.Sprint(to.Port())}
			got, err := path.Predict(c, q)
			if err != nil {
				t.Fatal(err)
			}
			want, endpoints := reference(c, node, pod, src, to)
			if want == path.Accepted && got.Verdict.Predicted != path.Refused {
				want = got.Verdict.Predicted // no Service's packet: the node's own, or outside
			}
			var kept []string
			for _, x := range got.Candidates {
				if x.Kept && len(endpoints) > 0 {
					kept = append(kept, x.Addr)
				}
			}
			slices.Sort(endpoints)
			slices.Sort(kept)
			if count[want]++; got.Verdict.Predicted != want || !slices.Equal(kept, endpoints) {
				t.Fatalf("%+v: predicted %s %v, the reference says %s %v\n%s", q, got.Verdict.Predicted, kept, want, endpoints, render(t, got, false))
			}
			checkFindings(t, got)
		}
	}
	t.Log(count)
	for _, s := range []path.State{path.Delivered, path.Refused, path.Dropped, path.Sometimes} {
		if count[s] < 20 {
			t.Errorf("only %d ways end as %s", count[s], s)
		}
	}
}

// checkFindings: a way that ends has one cause, and a way that arrives has none.
func checkFindings(t *testing.T, p *path.Path) {
	t.Helper()
	fatal := 0
	for _, f := range p.Findings {
		if f.Level == path.Fatal {
			fatal++
		}
	}
	ok := p.Verdict.Predicted == path.Delivered || p.Verdict.Predicted == path.Accepted
	if ok && fatal > 0 || !ok && fatal != 1 {
		t.Fatalf("%s with %d causes: %+v\n%s", p.Verdict.Predicted, fatal, p.Findings, render(t, p, false))
	}
}
