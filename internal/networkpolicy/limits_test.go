package networkpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// paint agrees with looking at each port.
func TestPaint(t *testing.T) {
	r := testnet.Random(t)
	for range 2000 {
		var some []Segment
		for i := range 1 + r.IntN(8) {
			first := r.IntN(30)
			s := Segment{api.TCP, uint16(first), uint16(first + r.IntN(12)), RuleID(1 + i%5)}
			if r.IntN(20) == 0 {
				s.Last = 65535
			}
			some = append(some, s)
		}
		out := paint(api.TCP, some)
		owner := func(all []Segment, port int) RuleID {
			for _, s := range all {
				if int(s.First) <= port && port <= int(s.Last) {
					return s.Rule
				}
			}
			return 0
		}
		for i := range out {
			if i > 0 && out[i].First <= out[i-1].Last {
				t.Fatalf("%v: %v overlap", some, out)
			}
		}
		for _, port := range []int{0, 1, 2, 3, 5, 8, 13, 17, 21, 25, 29, 30, 34, 40, 41, 42, 65534, 65535} {
			if got, want := owner(out, port), owner(some, port); got != want {
				t.Fatalf("%v: port %d is %v's in %v, want %v", some, port, got, out, want)
			}
		}
	}
}

func podAt(namespace string, i int) *api.Pod {
	return &api.Pod{Name: api.Name{Namespace: namespace, Name: fmt.Sprint("pod-", i)}, Node: "here",
		Labels: map[string]string{"n": fmt.Sprint(i)}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, namespace[0], byte(i / 250), byte(i % 250)})}}
}

// wide is a policy that allows peers x ports.
func wide(namespace, name string, peers, ports int) *Policy {
	p := &Policy{Name: api.Name{Namespace: namespace, Name: name}, Isolates: [2]bool{Ingress: true}}
	var r Rule
	for i := range peers {
		r.Peers = append(r.Peers, Peer{Pods: &api.Selector{Requirements: []api.Requirement{{Key: "n", Op: api.In, Values: []string{fmt.Sprint(i)}}}}})
	}
	for i := range ports {
		r.Ports = append(r.Ports, Port{Proto: api.TCP, First: uint16(1000 + 2*i), Last: uint16(1000 + 2*i)})
	}
	p.Rules[Ingress] = []Rule{r}
	return p
}

// What a namespace may cost is limited. Its cheapest policies count, what exceeds the limit
// isolates and allows nothing, other namespaces see nothing of it, and the order in which the
// objects come does not matter.
func TestLimits(t *testing.T) {
	build := func(backwards bool) *Compiler {
		c := New("here")
		c.limits = limits{maxPeers: 1000, maxGrants: 2000}
		var steps []func()
		for i := range 30 {
			steps = append(steps, func() { p := podAt("evil", i); c.SetPod(p.Name, p) }, func() { p := podAt("good", i); c.SetPod(p.Name, p) })
		}
		for _, p := range []*Policy{wide("evil", "cheap", 2, 3), wide("evil", "grants", 20, 30), wide("evil", "peers", 900, 80), wide("good", "web", 5, 4)} {
			steps = append(steps, func() { c.SetPolicy(p.Name, p) })
		}
		for i := range steps {
			if backwards {
				i = len(steps) - 1 - i
			}
			steps[i]()
			c.Compile()
		}
		return c
	}
	for _, backwards := range []bool{false, true} {
		c := build(backwards)
		table, _ := c.Compile()
		grants := 0
		for _, segments := range table.Grants[Ingress] {
			grants += len(segments)
		}
		if len(c.Problems()) != 2 || c.Problems()[api.Name{Namespace: "evil", Name: "peers"}] == "" || c.Problems()[api.Name{Namespace: "evil", Name: "grants"}] == "" {
			t.Errorf("problems: %v", c.Problems())
		}
		// 30 pods of each namespace: the cheap policy's 2x3, and the other namespace's 5x4.
		if grants != 30*2*3+30*5*4 {
			t.Errorf("%d grants", grants)
		}
		if n := len(table.Isolated[Ingress]); n != 60 {
			t.Errorf("%d pods are isolated, want all", n)
		}
		for _, name := range []string{"peers", "grants"} {
			c.SetPolicy(api.Name{Namespace: "evil", Name: name}, nil)
		}
		if c.Compile(); len(c.Problems()) != 0 {
			t.Errorf("without those policies: %v", c.Problems())
		}
		c.SetPolicy(api.Name{Namespace: "evil", Name: "cheap"}, wide("evil", "cheap", 10, 6))
		table, _ = c.Compile()
		if got := Lookup(table, Packet{Src: podAt("evil", 3).Addrs[0], Dst: podAt("evil", 5).Addrs[0], Proto: api.TCP, Port: 1002}); !got.Allowed() {
			t.Errorf("a policy within the limits: %+v", got)
		}
	}
}

// BenchmarkLimits is what the costliest namespace costs another one: a change of a policy of
// one pod, beside a namespace at its limits.
func BenchmarkLimits(b *testing.B) {
	c := New("here")
	for i := range 100 {
		p := podAt("evil", i)
		c.SetPod(p.Name, p)
	}
	one := podAt("good", 1)
	c.SetPod(one.Name, one)
	for i := range 40 {
		p := wide("evil", fmt.Sprint("p-", i), 60, 30)
		c.SetPolicy(p.Name, p)
	}
	c.Compile()
	for i := 0; b.Loop(); i++ {
		p := wide("good", "web", 1+i%3, 4)
		c.SetPolicy(p.Name, p)
		c.Compile()
	}
}

// empty is a policy without rules, which isolates all pods of its namespace.
func empty(namespace string, i int) *Policy {
	return &Policy{Name: api.Name{Namespace: namespace, Name: fmt.Sprint("p-", i)}, Isolates: [2]bool{Ingress: true, Egress: true}}
}

// Policies without a rule, and selectors of many values, count too: each pod of the node is compared with them.
// Of the policies that are over a limit one is enough to isolate a pod.
func TestManyPolicies(t *testing.T) {
	c := New("here")
	c.limits.maxPeers = 1000
	for i := range 3 {
		p := podAt("evil", i)
		c.SetPod(p.Name, p)
	}
	for i := range 2000 {
		p := empty("evil", i)
		c.SetPolicy(p.Name, p)
	}
	table, _ := c.Compile()
	if got := len(c.Problems()); got != 2000-1000/policyCost {
		t.Errorf("%d policies of 2,000 are over the limit", got)
	}
	at := podAt("evil", 1).Addrs[0]
	for _, d := range []Direction{Ingress, Egress} {
		if _, by := c.Isolates(at, d); len(by) != 1000/policyCost+1 || !slices.IsSortedFunc(by, api.Name.Compare) || !table.Isolated[d][at] {
			t.Errorf("%s: %d policies isolate the pod", d, len(by))
		}
	}
	for i := range 2000 {
		c.SetPolicy(empty("evil", i).Name, nil)
	}
	if table, _ = c.Compile(); len(c.Problems()) > 0 || len(table.Isolated[Ingress]) > 0 {
		t.Errorf("without policies: %d problems, %d isolated", len(c.Problems()), len(table.Isolated[Ingress]))
	}
	values := make([]string, 40_000)
	for i := range values {
		values[i] = fmt.Sprint(i)
	}
	some := api.NewSelector(api.Requirement{Key: "n", Op: api.NotIn, Values: values})
	p := empty("evil", 0)
	p.Rules[Ingress] = []Rule{{Peers: []Peer{{Namespaces: &api.Selector{}, Pods: &some}}}}
	c.SetPolicy(p.Name, p)
	if c.Compile(); len(c.Problems()) != 1 {
		t.Errorf("40,000 values of a selector: %v", c.Problems())
	}
}

// BenchmarkPolicies is one policy that changes in a namespace of many without a rule, and 100 pods here: what every
// other namespace waits for.
func BenchmarkPolicies(b *testing.B) {
	for _, many := range []int{100, 1000, 2000, 16000} {
		b.Run(fmt.Sprint(many), func(b *testing.B) {
			c := New("here")
			for i := range 100 {
				p := podAt("evil", i)
				c.SetPod(p.Name, p)
			}
			for i := range many {
				p := empty("evil", i)
				c.SetPolicy(p.Name, p)
			}
			c.Compile()
			for i := 0; b.Loop(); i++ {
				p := empty("evil", 0)
				p.Isolates[Egress] = i%2 == 0
				c.SetPolicy(p.Name, p)
				c.Compile()
			}
		})
	}
}
