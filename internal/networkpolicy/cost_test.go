package networkpolicy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// The tests of this file have a tenant evil, and a tenant good whose policies must cost the same with and without evil.

// addPods adds pods of this node.
func addPods(c *Compiler, namespace string, n int, ports ...api.NamedPort) {
	for i := range n {
		p := podAt(namespace, i)
		p.Ports = ports
		c.SetPod(p.Name, p)
	}
}

// allBut is the block of all IPv4 addresses except some.
func allBut(except ...netip.Prefix) Peer {
	return Peer{Block: &Block{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Except: except}}
}

// singles returns n blocks of one address.
func singles(n int) (all []netip.Prefix) {
	for i := range n {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 0, byte(i >> 8), byte(i)}), 32))
	}
	return all
}

// blocksOf is an egress policy for all pods of a namespace: peers in each rule, and some TCP ports.
func blocksOf(namespace, name string, rules [][]Peer, ports int) *Policy {
	p := &Policy{Name: api.Name{Namespace: namespace, Name: name}, Isolates: [2]bool{Egress: true}}
	for _, peers := range rules {
		r := Rule{Peers: peers}
		for i := range ports {
			r.Ports = append(r.Ports, Port{Proto: api.TCP, First: uint16(443 + i), Last: uint16(443 + i)})
		}
		p.Rules[Egress] = append(p.Rules[Egress], r)
	}
	return p
}

// elementsOf counts the elements of a namespace: grants to its pods, their views, and the prefixes of these.
func elementsOf(t *Table, namespace string) (n int) {
	views := map[View]bool{}
	for d := range t.Grants {
		for target, segments := range t.Grants[d] {
			if target.Local.As4()[1] == namespace[0] {
				n += len(segments)
			}
		}
		for at, v := range t.Views[d] {
			if at.As4()[1] == namespace[0] {
				views[v] = true
				n++
			}
		}
	}
	for p := range t.Prefixes {
		if views[p.View] {
			n++
		}
	}
	return n
}

// asGood compares what good costs, and that it reaches an address, with evil and without.
func asGood(t *testing.T, c *Compiler, to netip.Addr, port uint16, evil func()) {
	t.Helper()
	ask := func() (int, bool, map[api.Name]string) {
		table, _ := c.Compile()
		from := podAt("good", 0).Addrs[0]
		return elementsOf(table, "good"), Lookup(table, Packet{Src: from, Dst: to, Proto: api.TCP, Port: port}).Allowed(), c.Problems()
	}
	before, allowed, _ := ask()
	if !allowed || before == 0 {
		t.Fatalf("without evil: allowed %v, %d elements", allowed, before)
	}
	evil()
	after, allowed, problems := ask()
	for name, text := range problems {
		if name.Namespace == "good" {
			t.Errorf("evil closes %v: %s", name, text)
		}
	}
	if after != before || !allowed {
		t.Errorf("with evil good has %d elements, before %d; allowed %v", after, before, allowed)
	}
	t.Logf("good has %d elements before, %d after", before, after)
}

// Blocks of a namespace, also of the addresses of others' pods, do not change what others cost.
func TestBlocksOfOthers(t *testing.T) {
	c := New("here")
	addPods(c, "good", 30)
	addPods(c, "evil", 1)
	good := blocksOf("good", "out", [][]Peer{{allBut(netip.MustParsePrefix("169.254.169.254/32"))}, {{Pods: &api.Selector{}}}}, 2)
	c.SetPolicy(good.Name, good)
	asGood(t, c, singles(1)[0].Addr(), 443, func() {
		var peers []Peer
		for i, p := range singles(3900) {
			if i < 30 {
				p = netip.PrefixFrom(podAt("good", i).Addrs[0], 32)
			}
			peers = append(peers, Peer{Block: &Block{CIDR: p}})
		}
		p := blocksOf("evil", "blocks", [][]Peer{peers}, 0)
		c.SetPolicy(p.Name, p)
	})
}

// Everything except an address costs no more than the address, in one rule and in many, and others do not wait for it.
func TestEverythingExcept(t *testing.T) {
	one, many := [][]Peer{nil}, [][]Peer{}
	for _, p := range singles(1990) {
		one[0] = append(one[0], allBut(p))
	}
	for _, p := range singles(1330) {
		many = append(many, []Peer{allBut(p)})
	}
	for what, c := range map[string]struct {
		rules [][]Peer
		ports int
	}{"one rule": {one, 0}, "many rules": {many, 0}, "many rules with a port": {many[:990], 1}} {
		t.Run(what, func(t *testing.T) {
			k := New("here")
			addPods(k, "good", 30)
			addPods(k, "evil", 1)
			p := blocksOf("evil", "except", c.rules, c.ports)
			k.SetPolicy(p.Name, p)
			start := time.Now()
			table, _ := k.Compile()
			if took := time.Since(start); took > 200*time.Millisecond {
				t.Errorf("the compile took %v", took)
			}
			if len(k.Problems()) > 0 || !Lookup(table, Packet{Src: podAt("evil", 0).Addrs[0], Dst: singles(7)[6].Addr(), Proto: api.TCP, Port: 443}).Allowed() {
				t.Errorf("the policy does not count: %v", k.Problems())
			}
			start = time.Now()
			for i := range 10 {
				other := blocksOf("good", "out", [][]Peer{{allBut(singles(1 + i)...)}}, 1)
				k.SetPolicy(other.Name, other)
				k.Compile()
			}
			if took := time.Since(start) / 10; took > 20*time.Millisecond {
				t.Errorf("another namespace's change took %v", took)
			}
		})
	}
}

// The numbers that pods give to a named port are not elements of the policies that use the name.
func TestNamedPortsOfOthers(t *testing.T) {
	c := New("here")
	addPods(c, "good", 50, api.NamedPort{Name: "http", Proto: api.TCP, Number: 8080})
	p := &Policy{Name: api.Name{Namespace: "good", Name: "out"}, Isolates: [2]bool{Egress: true}}
	p.Rules[Egress] = []Rule{{Peers: []Peer{{Namespaces: &api.Selector{}}}, Ports: []Port{{Proto: api.TCP, Name: "http"}}}}
	c.SetPolicy(p.Name, p)
	asGood(t, c, podAt("good", 1).Addrs[0], 8080, func() {
		for i := range 100 {
			var ports []api.NamedPort
			for k := range 100 {
				ports = append(ports, api.NamedPort{Name: "http", Proto: api.TCP, Number: uint16(1000 + 100*i + k)})
			}
			p := podAt("evil", i)
			p.Ports = ports
			c.SetPod(p.Name, p)
		}
	})
}

// Selectors of other namespaces divide the classes of a namespace, and do not count for its limit.
func TestSelectorsOfOthers(t *testing.T) {
	c := New("here")
	c.limits.maxGrants = 100
	addPods(c, "good", 30)
	addPods(c, "evil", 1)
	web := &Policy{Name: api.Name{Namespace: "good", Name: "web"}, Isolates: [2]bool{Ingress: true}}
	web.Rules[Ingress] = []Rule{{Peers: []Peer{{Pods: &api.Selector{}}}}}
	c.SetPolicy(web.Name, web)
	p := wide("evil", "selectors", 30, 1)
	for i := range p.Rules[Ingress][0].Peers {
		p.Rules[Ingress][0].Peers[i].Namespaces = &api.Selector{}
	}
	c.SetPolicy(p.Name, p)
	table, _ := c.Compile()
	from, to := podAt("good", 3).Addrs[0], podAt("good", 4).Addrs[0]
	if len(c.Problems()) > 0 || !Lookup(table, Packet{Src: from, Dst: to, Proto: api.TCP, Port: 80}).Allowed() {
		t.Errorf("evil's selectors close a policy of good: %v", c.Problems())
	}
	if n := elementsOf(table, "good"); n != 30*30 {
		t.Errorf("good has %d elements, want a grant for each pod", n)
	}
}

// Blocks that exceed a limit close the policies that cause it, quickly.
func TestLimitOfBlocks(t *testing.T) {
	var rules [][]Peer
	for _, p := range singles(1000) {
		rules = append(rules, []Peer{allBut(p)})
	}
	large := blocksOf("evil", "large", rules, 1)
	for i := range large.Rules[Egress] {
		large.Rules[Egress][i].Ports[0] = Port{Proto: api.TCP, First: uint16(i + 1), Last: uint16(40000 - i)}
	}
	small := blocksOf("evil", "small", [][]Peer{{{Block: &Block{CIDR: netip.MustParsePrefix("30.0.0.0/15")}}}}, 1)
	c := New("here")
	addPods(c, "evil", 1)
	c.SetPolicy(large.Name, large)
	c.SetPolicy(small.Name, small)
	start := time.Now()
	table, _ := c.Compile()
	if took := time.Since(start); took > 200*time.Millisecond {
		t.Errorf("the compile took %v", took)
	}
	if p := c.Problems(); len(p) != 1 || p[large.Name] == "" {
		t.Errorf("problems: %v", p)
	}
	ask := func(to string, port uint16) bool {
		return Lookup(table, Packet{Src: podAt("evil", 0).Addrs[0], Dst: netip.MustParseAddr(to), Proto: api.TCP, Port: port}).Allowed()
	}
	if !ask("30.1.255.1", 443) || ask("30.2.0.1", 443) || ask("30.1.255.1", 444) {
		t.Error("the small policy does not count as it is written")
	}
	if n := len(table.Prefixes); n != 2 {
		t.Errorf("%d prefixes, want 2 of 16 bits", n)
	}
}

// A pod gives at most MaxNamedPorts ports by name.
func TestMaxNamedPorts(t *testing.T) {
	c := New("here")
	p := podAt("evil", 0)
	for i := range 2 * MaxNamedPorts {
		p.Ports = append(p.Ports, api.NamedPort{Name: "http", Proto: api.TCP, Number: uint16(1 + i)})
	}
	c.SetPod(p.Name, p)
	out := &Policy{Name: p.Name, Isolates: [2]bool{Egress: true}}
	out.Rules[Egress] = []Rule{{Ports: []Port{{Proto: api.TCP, Name: "http"}}}}
	c.SetPolicy(out.Name, out)
	if table, _ := c.Compile(); len(table.Ports) != MaxNamedPorts || !c.OverPorts()[p.Name] {
		t.Errorf("%d ports, over the limit: %v", len(table.Ports), c.OverPorts())
	}
	c.SetPod(p.Name, nil)
	if table, _ := c.Compile(); len(table.Ports)+len(c.OverPorts()) > 0 {
		t.Errorf("without the pod: %v, %v", table.Ports, c.OverPorts())
	}
}
