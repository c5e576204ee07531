package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/policytest"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// firstPort to lastPort are what pods listen at.
const firstPort, lastPort = 9000, 9004

// A node is one that enforces policies.
type node struct {
	*testnet.Host
	compiler *networkpolicy.Compiler
	table    *Table
}

func (n *node) sync(t *testing.T) {
	t.Helper()
	err := n.Do(func() error {
		want, changes := n.compiler.Compile()
		_, err := n.table.Sync(t.Context(), want, changes)
		n.compiler.Take()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A cluster is a World in namespaces: two nodes, four pods and a host outside, of both families.
type cluster struct {
	*policytest.World
	nodes map[string]*node
	hosts map[netip.Addr]*testnet.Host
	// sctpPort is the source port of the next packet of SCTP.
	sctpPort uint16
}

func newCluster(t *testing.T) *cluster {
	w := policytest.New(testnet.Random(t))
	w.FirstPort, w.Addrs, w.Tiers = firstPort, nil, true
	c := &cluster{World: w, nodes: map[string]*node{}, hosts: map[netip.Addr]*testnet.Host{}, sctpPort: 20000}
	net := testnet.New(t)
	for _, name := range []string{"here", "there"} {
		n := &node{net.Node(name), networkpolicy.New(name), New()}
		t.Cleanup(n.table.Close)
		c.nodes[name] = n
	}
	type place struct {
		node  string
		addrs []netip.Addr
	}
	places := map[api.Name]place{}
	i := byte(0)
	for _, space := range []string{"x", "y"} {
		for _, name := range []string{"1", "2"} {
			i++
			p := place{"here", []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, i}), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:1::%d", i))}}
			if i == 4 {
				p.node = "there"
			}
			h := net.Pod(c.nodes[p.node].Host, space+name, p.addrs...)
			for _, a := range p.addrs {
				c.hosts[a] = h
				for port := uint16(firstPort); port <= lastPort; port++ {
					h.Serve("tcp", netip.AddrPortFrom(a, port))
					h.Serve("udp", netip.AddrPortFrom(a, port))
				}
			}
			places[api.Name{Namespace: space, Name: name}] = p
			w.Addrs = append(w.Addrs, p.addrs...)
		}
	}
	for _, a := range net.Outside.Addrs {
		c.hosts[a] = net.Outside
		w.Addrs = append(w.Addrs, a)
		for port := uint16(firstPort); port <= lastPort; port++ {
			net.Outside.Serve("tcp", netip.AddrPortFrom(a, port))
			net.Outside.Serve("udp", netip.AddrPortFrom(a, port))
		}
	}
	w.Place = func(pod api.Name) (string, []netip.Addr) { p := places[pod]; return p.node, p.addrs }
	return c
}

// expect is what the objects say, by both ends.
func (c *cluster) expect(t *testing.T, p networkpolicy.Packet) bool {
	t.Helper()
	want := true
	for _, d := range []networkpolicy.Direction{networkpolicy.Egress, networkpolicy.Ingress} {
		if asked := c.Peering(p, d); asked != nil && p.Src != p.Dst {
			j := c.Evaluate(*asked)
			want = want && j.Allowed()
		}
	}
	for _, n := range c.nodes {
		table, _ := n.compiler.Compile()
		if !want && networkpolicy.Lookup(table, p).Allowed() {
			continue // the other node denies it
		} else if want != networkpolicy.Lookup(table, p).Allowed() {
			t.Errorf("%v: the objects allow it: %v, the table of node %s does not agree", p, want, n.Name)
		}
	}
	return want
}

// probe sends all packets at once and compares.
func (c *cluster) probe(t *testing.T, packets []networkpolicy.Packet) {
	t.Helper()
	var wg sync.WaitGroup
	for _, p := range packets {
		want := c.expect(t, p)
		wg.Go(func() {
			network, patience := "tcp", 20*time.Second
			if p.Proto == api.UDP {
				network = "udp"
			}
			if !want {
				patience = testnet.Patience
			}
			got := c.hosts[p.Src].Ask(network, netip.AddrPortFrom(p.Dst, p.Port), patience)
			if (got.Outcome == testnet.Answered) != want {
				t.Errorf("%v: allowed %v, and %v", p, want, got)
			}
		})
	}
	wg.Wait()
}

// Random policies: packets pass as Lookup says, in both families; a new Table, as of an agent
// that starts, writes nothing.
func TestRandomPackets(t *testing.T) {
	c := newCluster(t)
	compilers := []*networkpolicy.Compiler{c.nodes["here"].compiler, c.nodes["there"].compiler}
	for range 60 {
		c.Step(compilers...)
	}
	allowed, denied := 0, 0
	// With some seeds there are few policies for long.
	for round := 0; round < 6 || round < 60 && min(allowed, denied) < 50; round++ {
		for range 6 {
			c.Step(compilers...)
		}
		for _, n := range c.nodes {
			n.sync(t)
		}
		packets := map[api.Proto][]networkpolicy.Packet{}
		for range 60 {
			p := networkpolicy.Packet{Src: c.Addr(), Dst: c.Addr(), Proto: []api.Proto{api.TCP, api.UDP, api.SCTP}[c.IntN(3)], Port: uint16(firstPort + c.IntN(lastPort-firstPort+1))}
			if p.Src.Is4() != p.Dst.Is4() || c.hosts[p.Src] == c.hosts[p.Dst] {
				continue
			}
			packets[p.Proto] = append(packets[p.Proto], p)
			if c.expect(t, p) {
				allowed++
			} else {
				denied++
			}
		}
		c.probe(t, append(packets[api.TCP], packets[api.UDP]...))
		c.probeSCTP(t, packets[api.SCTP])
		for _, n := range c.nodes {
			n.restart(t)
		}
	}
	if t.Logf("%d allowed, %d denied", allowed, denied); allowed < 50 || denied < 50 {
		t.Error("the cases are one-sided")
	}
}

// What a pod sends to its own node is judged by ClusterNetworkPolicies only.
func TestOwnNode(t *testing.T) {
	net := testnet.New(t)
	n := &node{net.Node("here"), networkpolicy.New("here"), New()}
	t.Cleanup(n.table.Close)
	all := []netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:10:244:1::1")}
	name := api.Name{Namespace: "x", Name: "pod"}
	pod := net.Pod(n.Host, "pod", all...)
	n.compiler.SetPod(name, &api.Pod{Name: name, Node: "here", Addrs: all})
	deny := &networkpolicy.Policy{Name: name, Isolates: [2]bool{true, true}}
	cluster := func(tier networkpolicy.Tier, action networkpolicy.Action) *networkpolicy.ClusterPolicy {
		p := &networkpolicy.ClusterPolicy{Name: "nodes", Tier: tier, Subject: networkpolicy.Peer{Namespaces: &api.Selector{}}}
		p.Rules[networkpolicy.Egress] = []networkpolicy.ClusterRule{{Action: action, Rule: networkpolicy.Rule{Peers: []networkpolicy.Peer{{Nodes: &api.Selector{}}}}}}
		return p
	}
	n.compiler.SetNode("here", &networkpolicy.Node{Name: "here", Addrs: n.Addrs})
	for _, a := range n.Addrs {
		n.Serve("tcp", netip.AddrPortFrom(a, firstPort))
	}
	for what, c := range map[string]struct {
		own     *networkpolicy.Policy
		cluster *networkpolicy.ClusterPolicy
		want    bool
	}{
		"nothing":                              {nil, nil, true},
		"a NetworkPolicy":                      {deny, nil, true},
		"an Admin Deny":                        {nil, cluster(networkpolicy.Admin, networkpolicy.Deny), false},
		"an Admin Deny and a NetworkPolicy":    {deny, cluster(networkpolicy.Admin, networkpolicy.Deny), false},
		"an Admin Pass and a NetworkPolicy":    {deny, cluster(networkpolicy.Admin, networkpolicy.Pass), true},
		"a Baseline Deny":                      {nil, cluster(networkpolicy.Baseline, networkpolicy.Deny), false},
		"a Baseline Deny, and a NetworkPolicy": {deny, cluster(networkpolicy.Baseline, networkpolicy.Deny), true},
	} {
		n.compiler.SetPolicy(name, c.own)
		n.compiler.SetClusterPolicy("nodes", c.cluster)
		n.sync(t)
		for _, a := range n.Addrs {
			patience := 20 * time.Second
			if !c.want {
				patience = testnet.Patience
			}
			if got := pod.Ask("tcp", netip.AddrPortFrom(a, firstPort), patience); (got.Outcome == testnet.Answered) != c.want {
				t.Errorf("%s: to %v: want allowed %v, and %v", what, a, c.want, got)
			}
			table, _ := n.compiler.Compile()
			p := networkpolicy.Packet{Src: pod.Addr(a.Is4()), Dst: a, Proto: api.TCP, Port: firstPort, ToNode: true}
			if networkpolicy.Lookup(table, p).Allowed() != c.want {
				t.Errorf("%s: to %v: the table does not agree", what, a)
			}
		}
	}
}

// restart is what a new agent does; it must not write.
func (n *node) restart(t *testing.T) {
	t.Helper()
	again := New()
	defer again.Close()
	err := n.Do(func() error {
		if _, err := again.Adopt(context.Background()); err != nil {
			return err
		}
		want, changes := n.compiler.Compile()
		written, err := again.Sync(t.Context(), want, changes)
		if written != 0 {
			t.Errorf("a restart of %s wrote %d elements", n.Name, written)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
