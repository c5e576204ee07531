package enforcer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/flow/reset"
	"github.com/fairway-net/fairway/internal/ipc/isolate"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// objects are a Source.
type objects struct {
	synced, dirty chan struct{}
	mu            sync.Mutex
	networkpolicy.Cluster
	changed networkpolicy.Dirty
}

func newObjects() *objects {
	o := &objects{synced: make(chan struct{}), dirty: make(chan struct{}, 1), Cluster: *networkpolicy.NewCluster()}
	close(o.synced)
	return o
}

func (o *objects) Synced() <-chan struct{} { return o.synced }
func (o *objects) Dirty() <-chan struct{}  { return o.dirty }
func (o *objects) Take() networkpolicy.Dirty {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.changed
	o.changed = networkpolicy.Dirty{}
	return d
}

func (o *objects) Pod(n api.Name) *api.Pod {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Pods[n]
}

func (o *objects) Policy(n api.Name) *networkpolicy.Policy {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Policies[n]
}

func (o *objects) Namespace(n string) *api.Namespace {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Namespaces[n]
}

func (o *objects) ClusterPolicy(n string) *networkpolicy.ClusterPolicy {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ClusterPolicies[n]
}

func (o *objects) Node(n string) *networkpolicy.Node {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Nodes[n]
}

func (o *objects) change(f func()) {
	o.mu.Lock()
	f()
	o.mu.Unlock()
	select {
	case o.dirty <- struct{}{}:
	default:
	}
}

func (o *objects) setPod(p *api.Pod) {
	o.change(func() { o.Pods[p.Name] = p; o.changed.Pods = append(o.changed.Pods, p.Name) })
}

func (o *objects) setPolicy(n api.Name, p *networkpolicy.Policy) {
	o.change(func() {
		if o.Policies[n] = p; p == nil {
			delete(o.Policies, n)
		}
		o.changed.Policies = append(o.changed.Policies, n)
	})
}

// A rig is a node with an Enforcer, and pods.
type rig struct {
	*testing.T
	net    *testnet.Net
	node   *testnet.Host
	source *objects
	socket string
	kill   func() // ends the Enforcer
	gate   *flow.Gate
	tables nft.Monitor

	emptyAfter time.Duration
	registry   *prometheus.Registry // of the agent that was started last
	problems   chan api.Problem     // of the cluster
	*Enforcer
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, problems: make(chan api.Problem, 10), gate: &flow.Gate{}, net: testnet.New(t), source: newObjects(), socket: filepath.Join(t.TempDir(), "policy.sock")}
	r.node = r.net.Node("node-1")
	r.start()
	t.Cleanup(func() { r.kill() })
	return r
}

// start starts an agent; its goroutines' threads are not to be used again: they are in the
// node's namespace.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	r.registry = prometheus.NewRegistry()
	r.source.change(func() { // a new subscription hears of all
		for n := range r.source.Pods {
			r.source.changed.Pods = append(r.source.changed.Pods, n)
		}
		for n := range r.source.Policies {
			r.source.changed.Policies = append(r.source.changed.Policies, n)
		}
		for n := range r.source.ClusterPolicies {
			r.source.changed.ClusterPolicies = append(r.source.changed.ClusterPolicies, n)
		}
	})
	var wg sync.WaitGroup
	flows := conntrack.New(conntrack.Config{Log: log})
	resets := reset.New(reset.Config{Log: log, Flows: conntrack.New(conntrack.Config{Log: log})})
	inNode := func(f func() error) func() error {
		return func() error {
			var err error
			_ = r.node.Do(func() error { err = f(); return nil }) // it is f's
			return err
		}
	}
	e := New(Config{Log: log, Node: "node-1", Source: r.source, Table: nftables.New(), Socket: r.socket, TablesChanged: r.tables.Changed(numbers.TablePolicy),
		EmptyAfter: r.emptyAfter, ClusterEvent: func(p api.Problem) { r.problems <- p }, Metrics: NewMetrics(r.registry)})
	end := EndAll(r.gate, flows, resets.Reset)
	r.Enforcer = e
	for _, f := range []func() error{
		func() error { return resets.Run(ctx) },
		func() error {
			defer e.Table.Close()
			if err := e.adopt(ctx); err != nil || ctx.Err() != nil {
				return err
			}
			server, err := e.listen(ctx)
			if err != nil {
				return err
			}
			wg.Go(func() { _ = e.serve(ctx, server) })
			return e.loop(ctx)
		},
		func() error { e.End = end; return e.endRevoked(ctx) },
	} {
		wg.Go(func() {
			runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
			if err := inNode(f)(); err != nil {
				r.Error(err)
			}
		})
	}
	r.kill = func() { cancel(); wg.Wait(); flows.Close() }
}

func (r *rig) ask(q isolate.Request) {
	r.Helper()
	if err := r.tryAsk(q); err != nil {
		r.Fatal(err)
	}
}

// askUntil asks until the answer is that it is done, as kubelet does.
func (r *rig) askUntil(q isolate.Request) {
	r.Helper()
	r.eventually("the agent answers", func() bool { return r.tryAsk(q) == nil })
}

func (r *rig) tryAsk(q isolate.Request) error {
	c, err := net.Dial("unix", r.socket)
	for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		c, err = net.Dial("unix", r.socket)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	var answer isolate.Answer
	if err := errors.Join(json.NewEncoder(c).Encode(q), json.NewDecoder(c).Decode(&answer)); err != nil || answer.Error != "" {
		return fmt.Errorf("%+v: %w %s", q, err, answer.Error)
	}
	return nil
}

func (r *rig) pod(name string, addr netip.Addr, labels map[string]string) *testnet.Host {
	r.source.setPod(&api.Pod{Name: api.Name{Namespace: "default", Name: name}, UID: name, Node: "node-1", Labels: labels, Addrs: []netip.Addr{addr}})
	return r.net.Pod(r.node, name, addr)
}

// eventually waits for a condition.
func (r *rig) eventually(what string, f func() bool) {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("never: %s", what)
		}
	}
}

var (
	webAddr    = netip.MustParseAddr("10.244.1.10")
	clientAddr = netip.MustParseAddr("10.244.1.11")
	otherAddr  = netip.MustParseAddr("10.244.1.12")
	denyAll    = api.Name{Namespace: "default", Name: "deny-all"}
)

// What loses its grant is reset at both ends, what keeps it lives on, and the end of a policy
// cuts nothing.
func TestRevoke(t *testing.T) {
	r := newRig(t)
	web := r.pod("web", webAddr, map[string]string{"app": "web"})
	client := r.pod("client", clientAddr, map[string]string{"app": "client"})
	other := r.pod("other", otherAddr, map[string]string{"app": "other"})
	at := netip.AddrPortFrom(webAddr, 8080)
	web.Serve("tcp", at)
	// The kernel tracks connections from when there is a rule that asks for it.
	r.ask(isolate.Request{Command: isolate.Delete, Container: "none"})
	var conns []*testnet.Conn
	for _, from := range []*testnet.Host{client, other} {
		c, err := from.Dial("tcp", at, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if a := c.Ask(10 * time.Second); a.Outcome != testnet.Answered {
			t.Fatal(a)
		}
		conns = append(conns, c)
	}
	name := api.Name{Namespace: "default", Name: "web"}
	r.source.setPolicy(name, &networkpolicy.Policy{Name: name, Isolates: [2]bool{networkpolicy.Ingress: true},
		Selector: api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{"web"}}}},
		Rules: [2][]networkpolicy.Rule{networkpolicy.Ingress: {{Peers: []networkpolicy.Peer{{Pods: &api.Selector{
			Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{"client"}}}}}}}}}})
	if err := conns[1].Wait(20 * time.Second); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection that lost its grant ends with %v, want a reset", err)
	}
	if a := conns[0].Ask(10 * time.Second); a.Outcome != testnet.Answered {
		t.Errorf("the connection that kept its grant: %v", a)
	}
	if a := other.Ask("tcp", at, testnet.Patience); a.Outcome != testnet.Dropped {
		t.Errorf("a new connection without a grant: %v", a)
	}
	r.source.setPolicy(name, nil)
	r.eventually("web is not isolated", func() bool { return other.Ask("tcp", at, testnet.Patience).Outcome == testnet.Answered })
	if a := conns[0].Ask(10 * time.Second); a.Outcome != testnet.Answered {
		t.Errorf("after the end of the policy: %v", a)
	}
}

// connect opens a connection that has been answered.
func (r *rig) connect(from *testnet.Host, to netip.AddrPort) *testnet.Conn {
	r.Helper()
	c, err := from.Dial("tcp", to, 20*time.Second)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(c.Close)
	if a := c.Ask(20 * time.Second); a.Outcome != testnet.Answered {
		r.Fatal(a)
	}
	return c
}

// A relay carries one connection.
type relay struct{ client, dest netip.Addr }

func (c relay) EndRefused() int { return 0 }
func (c relay) Carries(_ api.Proto, client, dest netip.AddrPort) bool {
	return client.Addr() == c.client && dest.Addr() == c.dest
}

// What is not judged is not ended either: connections to the node, and those that clients have
// with our own proxy.
func TestRevokeSpares(t *testing.T) {
	r := newRig(t)
	client, web := r.pod("client", clientAddr, nil), r.pod("web", webAddr, nil)
	proxy := r.pod("proxy", otherAddr, nil) // as if it were the node's
	defer r.gate.Join(relay{clientAddr, otherAddr})()
	at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 8080) }
	nodeAddr := r.node.Addr(true)
	for addr, h := range map[netip.Addr]*testnet.Host{webAddr: web, otherAddr: proxy, nodeAddr: r.node} {
		h.Serve("tcp", at(addr))
	}
	r.ask(isolate.Request{Command: isolate.Delete, Container: "none"})
	toWeb, toProxy, toNode := r.connect(client, at(webAddr)), r.connect(client, at(otherAddr)), r.connect(client, at(nodeAddr))
	r.source.setPolicy(denyAll, &networkpolicy.Policy{Name: denyAll, Isolates: [2]bool{networkpolicy.Egress: true}})
	if err := toWeb.Wait(30 * time.Second); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the connection that is denied ends with %v, want a reset", err)
	}
	if a := toNode.Ask(20 * time.Second); a.Outcome != testnet.Answered {
		t.Errorf("the connection to the node: %v", a)
	}
	if a := toProxy.Ask(20 * time.Second); a.Outcome != testnet.Answered {
		t.Errorf("the connection to the proxy: %v", a)
	}
}

// starts is how many pods are born.
const starts = 1000

// A pod of a namespace that denies all sends as soon as its ADD is answered, a thousand times:
// no packet comes out, whether the agent knows the pod or not, and also while agents are
// replaced.
func TestBirth(t *testing.T) {
	r := newRig(t)
	sink := r.pod("sink", webAddr, nil)
	born := r.pod("source", clientAddr, nil)
	r.source.setPolicy(denyAll, &networkpolicy.Policy{Name: denyAll, Isolates: [2]bool{true, true},
		Selector: api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{"denied"}}}}})
	var got []string
	var mu sync.Mutex
	listener := listenAt(t, sink)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 100)
		for {
			n, _, err := listener.ReadFrom(buf)
			if err != nil {
				return
			}
			mu.Lock()
			got = append(got, string(buf[:n]))
			mu.Unlock()
		}
	})
	send := func(from netip.Addr, text string) {
		if err := born.Do(func() error { return sendFrom(from, netip.AddrPortFrom(webAddr, 9), text) }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range starts {
		addr := netip.AddrFrom4([4]byte{10, 244, 2 + byte(i/250), byte(1 + i%250)})
		name := api.Name{Namespace: "default", Name: fmt.Sprint("born-", i)}
		if i%2 == 0 { // known already, without an address
			r.source.setPod(&api.Pod{Name: name, UID: name.Name, Node: "node-1", Labels: map[string]string{"app": "denied"}})
		}
		if i%100 == 50 {
			r.kill()
			r.start()
		}
		r.ask(isolate.Request{Command: isolate.Add, Pod: name.String(), UID: name.Name, Container: fmt.Sprintf("%012d", i), Addrs: []netip.Addr{addr}})
		send(addr, name.Name)
		if i%100 == 49 {
			r.kill()
			send(addr, name.Name+" without an agent")
			r.start()
		}
		if i%3 == 0 {
			r.ask(isolate.Request{Command: isolate.Delete, Container: fmt.Sprintf("%012d", i)})
		}
	}
	send(clientAddr, "allowed")
	r.eventually("the packet of a pod that nothing isolates comes", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) > 0 })
	_ = listener.Close()
	wg.Wait()
	if len(got) != 1 || got[0] != "allowed" {
		t.Errorf("%d packets came, want that of the pod that nothing isolates: %q", len(got), got)
	}
}
