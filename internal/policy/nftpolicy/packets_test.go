package nftpolicy

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/labels"
	"github.com/fairway-net/fairway/internal/policy"
	"github.com/fairway-net/fairway/internal/policy/policytest"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testnet"
)

// firstPort to lastPort are what pods listen at.
const firstPort, lastPort = 9000, 9004

// A node is one that enforces policies.
type node struct {
	*testnet.Host
	compiler *policy.Compiler
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
		n := &node{net.Node(name), policy.New(name), New()}
		t.Cleanup(n.table.Close)
		c.nodes[name] = n
	}
	type place struct {
		node  string
		addrs []netip.Addr
	}
	places := map[service.Name]place{}
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
			places[service.Name{Namespace: space, Name: name}] = p
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
	w.Place = func(pod service.Name) (string, []netip.Addr) { p := places[pod]; return p.node, p.addrs }
	return c
}

// expect is what the objects say, by both ends.
func (c *cluster) expect(t *testing.T, p policy.Packet) bool {
	t.Helper()
	want := true
	for _, d := range []policy.Direction{policy.Egress, policy.Ingress} {
		if asked := c.Peering(p, d); asked != nil && p.Src != p.Dst {
			j := c.Evaluate(*asked)
			want = want && j.Allowed()
		}
	}
	for _, n := range c.nodes {
		table, _ := n.compiler.Compile()
		if !want && policy.Lookup(table, p).Allowed() {
			continue // the other node denies it
		} else if want != policy.Lookup(table, p).Allowed() {
			t.Errorf("%v: the objects allow it: %v, the table of node %s does not agree", p, want, n.Name)
		}
	}
	return want
}

// probe sends all packets at once and compares.
func (c *cluster) probe(t *testing.T, packets []policy.Packet) {
	t.Helper()
	var wg sync.WaitGroup
	for _, p := range packets {
		want := c.expect(t, p)
		wg.Go(func() {
			network, patience := "tcp", 20*time.Second
			if p.Proto == service.UDP {
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
	compilers := []*policy.Compiler{c.nodes["here"].compiler, c.nodes["there"].compiler}
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
		packets := map[service.Proto][]policy.Packet{}
		for range 60 {
			p := policy.Packet{Src: c.Addr(), Dst: c.Addr(), Proto: []service.Proto{service.TCP, service.UDP, service.SCTP}[c.IntN(3)], Port: uint16(firstPort + c.IntN(lastPort-firstPort+1))}
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
		c.probe(t, append(packets[service.TCP], packets[service.UDP]...))
		c.probeSCTP(t, packets[service.SCTP])
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
	n := &node{net.Node("here"), policy.New("here"), New()}
	t.Cleanup(n.table.Close)
	all := []netip.Addr{netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:10:244:1::1")}
	name := service.Name{Namespace: "x", Name: "pod"}
	pod := net.Pod(n.Host, "pod", all...)
	n.compiler.SetPod(name, &policy.Pod{Name: name, Node: "here", Addrs: all})
	deny := &policy.Policy{Name: name, Isolates: [2]bool{true, true}}
	cluster := func(tier policy.Tier, action policy.Action) *policy.ClusterPolicy {
		p := &policy.ClusterPolicy{Name: "nodes", Tier: tier, Subject: policy.Peer{Namespaces: &labels.Selector{}}}
		p.Rules[policy.Egress] = []policy.ClusterRule{{Action: action, Rule: policy.Rule{Peers: []policy.Peer{{Nodes: &labels.Selector{}}}}}}
		return p
	}
	n.compiler.SetNode("here", &policy.Node{Name: "here", Addrs: n.Addrs})
	for _, a := range n.Addrs {
		n.Serve("tcp", netip.AddrPortFrom(a, firstPort))
	}
	for what, c := range map[string]struct {
		own     *policy.Policy
		cluster *policy.ClusterPolicy
		want    bool
	}{
		"nothing":                              {nil, nil, true},
		"a NetworkPolicy":                      {deny, nil, true},
		"an Admin Deny":                        {nil, cluster(policy.Admin, policy.Deny), false},
		"an Admin Deny and a NetworkPolicy":    {deny, cluster(policy.Admin, policy.Deny), false},
		"an Admin Pass and a NetworkPolicy":    {deny, cluster(policy.Admin, policy.Pass), true},
		"a Baseline Deny":                      {nil, cluster(policy.Baseline, policy.Deny), false},
		"a Baseline Deny, and a NetworkPolicy": {deny, cluster(policy.Baseline, policy.Deny), true},
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
			p := policy.Packet{Src: pod.Addr(a.Is4()), Dst: a, Proto: service.TCP, Port: firstPort, ToNode: true}
			if policy.Lookup(table, p).Allowed() != c.want {
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
