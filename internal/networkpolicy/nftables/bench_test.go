package nftables

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// The cluster of BenchmarkPolicy: 50 namespaces of 200 pods and 20 policies.
const spaces, podsEach, policiesEach, localPods = 50, 200, 20, 100

func benchLabels(i int) map[string]string {
	return map[string]string{"app": fmt.Sprint("app-", i%10), "role": fmt.Sprint("role-", i%4), "pod-template-hash": fmt.Sprint(i % 40)}
}

func equals(k, v string) api.Selector {
	return api.Selector{Requirements: []api.Requirement{{Key: k, Op: api.In, Values: []string{v}}}}
}

func benchPod(space, i int) *api.Pod {
	node := fmt.Sprint("node-", 2+i%99)
	if i < localPods/spaces {
		node = "node-1"
	}
	n := space*podsEach + i
	return &api.Pod{
		Name: api.Name{Namespace: fmt.Sprint("space-", space), Name: fmt.Sprint("pod-", i)}, UID: fmt.Sprint(n), Node: node, Labels: benchLabels(i),
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)})},
		Ports: []api.NamedPort{{Name: "http", Proto: api.TCP, Number: 8080}},
	}
}

// benchPolicy lets some pods of the namespace in, and those of a team's namespaces, and
// addresses outside; and lets out to the namespace, and to DNS.
func benchPolicy(space, i int) *networkpolicy.Policy {
	own, team, everything := equals("role", fmt.Sprint("role-", i%4)), equals("team", fmt.Sprint("team-", i%5)), api.Selector{}
	block := &networkpolicy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{203, byte(i), byte(space), 0}), 24)}
	return &networkpolicy.Policy{
		Name:     api.Name{Namespace: fmt.Sprint("space-", space), Name: fmt.Sprint("policy-", i)},
		Selector: equals("app", fmt.Sprint("app-", i%10)), Isolates: [2]bool{true, true},
		Rules: [2][]networkpolicy.Rule{
			networkpolicy.Ingress: {
				{Peers: []networkpolicy.Peer{{Pods: &own}, {Namespaces: &team}}, Ports: []networkpolicy.Port{{Proto: api.TCP, Name: "http"}}},
				{Peers: []networkpolicy.Peer{{Block: block}}, Ports: []networkpolicy.Port{{Proto: api.TCP, First: 443, Last: 443}}},
			},
			networkpolicy.Egress: {
				{Peers: []networkpolicy.Peer{{Pods: &everything}}, Ports: []networkpolicy.Port{{Proto: api.TCP, First: 8080, Last: 8080}}},
				{Peers: []networkpolicy.Peer{{Namespaces: &everything}}, Ports: []networkpolicy.Port{{Proto: api.UDP, First: 53, Last: 53}}},
			},
		},
	}
}

func benchCluster(c *networkpolicy.Compiler) {
	for s := range spaces {
		name := fmt.Sprint("space-", s)
		c.SetNamespace(name, &api.Namespace{Name: name, Labels: map[string]string{"team": fmt.Sprint("team-", s%5)}})
		for i := range podsEach {
			p := benchPod(s, i)
			c.SetPod(p.Name, p)
		}
		for i := range policiesEach {
			p := benchPolicy(s, i)
			c.SetPolicy(p.Name, p)
		}
	}
}

// bench is a node with the cluster.
type bench struct {
	*testing.B
	node, client *testnet.Host
	at           netip.AddrPort // the server
	compiler     *networkpolicy.Compiler
	table        *Table
}

// sync compiles and writes, and returns how long that took and how many elements it wrote.
func (b *bench) sync() (time.Duration, int) {
	start := time.Now()
	want, changes := b.compiler.Compile()
	n, err := b.table.Sync(b.Context(), want, changes)
	if err != nil {
		b.Fatal(err)
	}
	b.compiler.Take()
	return time.Since(start), n
}

// median does something many times and prints the median time and number of elements.
func (b *bench) median(what string, f func(i int)) {
	var took []time.Duration
	var written []int
	for i := range 41 {
		f(i)
		d, n := b.sync()
		took, written = append(took, d), append(written, n)
	}
	slices.Sort(took)
	slices.Sort(written)
	fmt.Printf("%-34s p50 %v, p90 %v, %d elements\n", what, took[20].Round(10*time.Microsecond), took[36].Round(10*time.Microsecond), written[20])
}

// BenchmarkPolicy prints the figures of docs/performance.md.
func BenchmarkPolicy(b *testing.B) {
	w := newBenchNode(b, "node-1")
	defer w.table.Close()
	w.do(func() { w.sync() })
	w.do(func() {
		heap := heapInUse()
		start := time.Now()
		benchCluster(w.compiler)
		_, written := w.sync()
		fmt.Printf("%-34s %v, %d elements\n", "cold start", time.Since(start).Round(time.Millisecond), written)
		fmt.Printf("%-34s %.0f MB\n", "memory of the objects and the table", float64(heapInUse()-heap)/1e6)
		w.changes()
	})
	// Beside a node that tracks connections, as each one with a proxy does, and one with the program and no policies.
	tracks, empty := newBenchNode(b, "tracks"), newBenchNode(b, "empty")
	tracks.do(func() {
		runNFT(b, "add table inet t; add chain inet t c { type filter hook postrouting priority 95; ct state established accept; }")
	})
	empty.do(func() { empty.sync() })
	defer empty.table.Close()
	compare(w, tracks, empty)
}

// newBenchNode is a node with the first two pods of the cluster, of which pod-1 asks pod-0.
func newBenchNode(b *testing.B, name string) *bench {
	network := testnet.New(b) // of its own: they have the same addresses
	// The cluster is node-1's, whatever the namespace is called.
	w := &bench{B: b, node: network.Node(name), compiler: networkpolicy.New("node-1"), table: New()}
	w.client = network.Pod(w.node, name+" client", netip.MustParseAddr("10.244.0.1"))
	w.at = netip.MustParseAddrPort("10.244.0.0:8080")
	serve(b, network.Pod(w.node, name+" server", w.at.Addr()), w.at)
	return w
}

func (b *bench) do(f func()) {
	if err := b.node.Do(func() error { f(); return nil }); err != nil {
		b.Fatal(err)
	}
}

func runNFT(b *testing.B, text string) {
	if out, err := exec.Command("nft", text).CombinedOutput(); err != nil {
		b.Fatalf("nft: %v: %s", err, out)
	}
}

// compare opens connections on all nodes in turn, in short rounds, so that what else the machine does meets all alike. What it
// prints are quartiles of the rounds' ratios: of connections a second by the clock, and by the processors' time that this process and
// the kernel for it took, which others on the machine disturb less.
func compare(subject *bench, others ...*bench) {
	const rounds, each = 120, 300
	all := append([]*bench{subject}, others...)
	var rates, ratios [2][][]float64 // by the clock, by the processors' time
	for k := range rates {
		rates[k], ratios[k] = make([][]float64, len(all)), make([][]float64, len(all))
	}
	for round := range rounds + 1 {
		now := make([][2]float64, len(all))
		for i := range all {
			n := (i + round) % len(all)
			now[n] = rate(subject.B, all[n].client, all[n].at, each)
		}
		if round == 0 { // warms up
			continue
		}
		for k := range rates {
			for i := range all {
				rates[k][i], ratios[k][i] = append(rates[k][i], now[i][k]), append(ratios[k][i], now[0][k]/now[i][k])
			}
		}
	}
	quartile := func(values []float64, n int) float64 {
		slices.Sort(values)
		return values[n*(len(values)-1)/4]
	}
	for k, what := range []string{"connections a second", "connections a second of a core"} {
		for i, one := range others {
			r := ratios[k][i+1]
			fmt.Printf("%-34s %.0f with, %.0f %s: ratio %.3f (quartiles %.3f, %.3f; %d rounds)\n", what,
				quartile(rates[k][0], 2), quartile(rates[k][i+1], 2), one.node.Name, quartile(r, 2), quartile(r, 1), quartile(r, 3), rounds)
		}
	}
}

func (b *bench) changes() {
	remote := func(i int) *api.Pod { return benchPod(7, 100+i) }
	b.median("a pod elsewhere goes", func(i int) { b.compiler.SetPod(remote(i).Name, nil) })
	b.median("a pod elsewhere appears", func(i int) { p := remote(i); b.compiler.SetPod(p.Name, p) })
	b.median("a label changes: known class", func(i int) {
		p := remote(i)
		p.Labels["role"] = fmt.Sprint("role-", (i+1)%4)
		b.compiler.SetPod(p.Name, p)
	})
	b.median("a label changes: class is new", func(i int) {
		p := remote(0)
		p.Labels["app"] = fmt.Sprint("app-", i)
		if i%2 == 0 {
			p.Labels["role"] = "another"
		}
		b.compiler.SetPod(p.Name, p)
	})
	b.median("a pod starts here", func(i int) {
		p := benchPod(8, 2)
		p.Name.Name, p.Node = fmt.Sprint("new-", i), "node-1"
		p.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 245, 0, byte(i)})}
		b.compiler.SetPod(p.Name, p)
	})
	b.median("a policy changes", func(i int) {
		p := benchPolicy(i, 1)
		p.Rules[networkpolicy.Ingress][0].Ports[0] = networkpolicy.Port{Proto: api.TCP, First: 81, Last: 81}
		b.compiler.SetPolicy(p.Name, p)
	})
	b.median("a policy is added: a new selector", func(i int) {
		p := benchPolicy(i, 1)
		other := equals("pod-template-hash", "7")
		p.Name.Name, p.Rules[networkpolicy.Ingress][0].Peers[0].Pods = "added", &other
		b.compiler.SetPolicy(p.Name, p)
	})
	b.median("a policy is added: a new block", func(i int) {
		p := benchPolicy(i, 1)
		p.Name.Name, p.Rules[networkpolicy.Ingress][1].Peers[0].Block = "block", &networkpolicy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i), 0}), 24)}
		b.compiler.SetPolicy(p.Name, p)
	})
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// serve accepts connections and closes them.
func serve(b *testing.B, h *testnet.Host, at netip.AddrPort) {
	var l net.Listener
	err := h.Do(func() (err error) { l, err = net.Listen("tcp", at.String()); return err })
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
}

// rate opens connections, one after the other, and returns how many a second, and a second of a core.
func rate(b *testing.B, h *testnet.Host, at netip.AddrPort, many int) (r [2]float64) {
	err := h.Do(func() error {
		start, spent := time.Now(), processorTime(b)
		for range many {
			c, err := net.DialTimeout("tcp", at.String(), 10*time.Second)
			if err != nil {
				return err
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
		r = [2]float64{float64(many) / time.Since(start).Seconds(), float64(many) / (processorTime(b) - spent).Seconds()}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// processorTime is what this process has taken by now, in the kernel too.
func processorTime(b *testing.B) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
