package flow_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/flow/reset"
	"github.com/fairway-net/fairway/internal/proxy"
	"github.com/fairway-net/fairway/internal/proxy/health"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// patience is the time limit for an expected event. It is long, because a loaded machine is no failure.
const patience = 30 * time.Second

// An endpoint of the Service, with the name of its pod.
type endpoint struct {
	service.SliceEndpoint
	pod string
}

// cluster is an API with one Service and its pods.
type cluster struct {
	synced, dirty chan struct{}

	mu        sync.Mutex
	service   *service.Service
	endpoints []endpoint
	changed   bool
	alive     map[netip.Addr]bool
	hangs     map[string]bool // pods for which the API server never answers
	nameless  bool            // the endpoints refer to no pods
	asked     atomic.Int32
	hanging   atomic.Int32 // number of questions without an answer
}

func (c *cluster) Synced() <-chan struct{}          { return c.synced }
func (c *cluster) Dirty() <-chan struct{}           { return c.dirty }
func (c *cluster) Triggers() map[api.Name]time.Time { return nil }

func (c *cluster) Take() []api.Name {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.changed {
		return nil
	}
	c.changed = false
	return []api.Name{c.service.Name}
}

func (c *cluster) Service(api.Name) (*service.Service, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.service, true
}

func (c *cluster) Slices(n api.Name) []*service.Slice {
	c.mu.Lock()
	defer c.mu.Unlock()
	four := &service.Slice{Name: api.Name{Namespace: n.Namespace, Name: "four"}, Service: n, Ports: slicePorts()}
	six := &service.Slice{Name: api.Name{Namespace: n.Namespace, Name: "six"}, Service: n, Ports: slicePorts()}
	names := map[*service.Slice][]string{}
	for _, e := range c.endpoints {
		s := six
		if e.Addr.Is4() {
			s = four
		}
		s.Endpoints = append(s.Endpoints, e.SliceEndpoint)
		if c.nameless {
			e.pod = ""
		}
		names[s] = append(names[s], e.pod)
	}
	four.Pods, six.Pods = service.PackPodNames(names[four]), service.PackPodNames(names[six])
	return []*service.Slice{four, six}
}

func slicePorts() []service.SlicePort {
	return []service.SlicePort{{Name: "tcp", Proto: api.TCP, Port: 8080}, {Name: "udp", Proto: api.UDP, Port: 8080}}
}

// Pod implements flow.PodLookup with the API server's answer.
func (c *cluster) Pod(ctx context.Context, namespace, name string, addr netip.Addr) (exists, terminating bool, err error) {
	c.mu.Lock()
	hangs := c.hangs[name]
	exists = namespace == c.service.Name.Namespace && c.alive[addr]
	c.mu.Unlock()
	c.asked.Add(1)
	if hangs {
		c.hanging.Add(1)
		<-ctx.Done()
		return false, false, ctx.Err()
	}
	return exists, false, nil
}

// change applies a change and wakes the loop.
func (c *cluster) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	c.changed = true
	select {
	case c.dirty <- struct{}{}:
	default:
	}
}

// stage is a node with an agent's loop, and the Service's pods a and b.
type stage struct {
	*testnet.Net
	t               *testing.T
	api             *cluster
	pods            []netip.Prefix // Settings.Pods
	node, a, b, pod *testnet.Host
	vips            map[bool]netip.Addr // the key is true for IPv4
}

func newStage(t *testing.T, closing service.TerminationPolicy) *stage {
	t.Helper()
	s := &stage{Net: testnet.New(t), t: t}
	s.pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/64")}
	s.node = s.Node("node")
	both := func(last byte) []netip.Addr {
		return []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, last}), netip.AddrFrom16([16]byte{0: 0xfd, 2: 2, 3: 0x44, 15: last})}
	}
	s.a, s.b, s.pod = s.Pod(s.node, "a", both(5)...), s.Pod(s.node, "b", both(6)...), s.Pod(s.node, "pod", both(7)...)
	s.vips = map[bool]netip.Addr{true: netip.MustParseAddr("10.96.0.10"), false: netip.MustParseAddr("fd00:96::10")}
	s.api = &cluster{
		synced: make(chan struct{}), dirty: make(chan struct{}, 1), alive: map[netip.Addr]bool{}, hangs: map[string]bool{},
		service: &service.Service{
			Name: api.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{s.vips[true], s.vips[false]}, Termination: closing,
			Ports: []service.Port{
				{Name: "tcp", Proto: api.TCP, Port: 80, NodePort: 30080}, {Name: "udp", Proto: api.UDP, Port: 80, NodePort: 30080},
			},
		},
	}
	close(s.api.synced)
	for is4, vip := range s.vips {
		if err := s.Route(netip.PrefixFrom(vip, vip.BitLen()), s.node); err != nil {
			t.Fatal(err)
		}
		for _, network := range []string{"tcp", "udp"} {
			s.a.Serve(network, netip.AddrPortFrom(s.a.Addr(is4), 8080))
			s.b.Serve(network, netip.AddrPortFrom(s.b.Addr(is4), 8080))
		}
	}
	return s
}

func ready(ready bool) service.SliceEndpoint {
	return service.SliceEndpoint{Node: "node", Ready: ready, Serving: ready}
}

// endpoints sets the Service's endpoints a and b. A nil endpoint is removed.
func (s *stage) endpoints(a, b *service.SliceEndpoint) {
	s.api.change(func() {
		s.api.endpoints = nil
		for h, e := range map[*testnet.Host]*service.SliceEndpoint{s.a: a, s.b: b} {
			for _, addr := range h.Addrs {
				if e != nil {
					one := endpoint{*e, h.Name}
					one.Addr = addr
					s.api.endpoints = append(s.api.endpoints, one)
				}
			}
		}
	})
}

// start runs an agent's loop on the node, with or without the part that ends flows.
func (s *stage) start(ends bool) (stop func()) {
	s.t.Helper()
	log := slog.New(slog.NewTextHandler(s.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	dp, err := nftables.New(nftables.Config{})
	if err != nil {
		s.t.Fatal(err)
	}
	settings := service.Settings{
		Pods:      s.pods,
		NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
	}
	resets := reset.New(reset.Config{Log: log, Flows: conntrack.New(conntrack.Config{Log: log})})
	table := conntrack.New(conntrack.Config{Log: log, NodePort: settings.ServesNodePorts})
	flows := flow.New(flow.Config{Log: log, Pods: s.api, Enders: []flow.Ender{conntrack.NewEnder(log, table, resets.Reset)}})
	cfg := proxy.Config{
		Log: log, Source: s.api, Datapath: dp, Health: health.NewState(time.Minute),
		Facts:   func() service.Facts { return service.Facts{Node: service.Node{Name: "node", Settings: settings}} },
		Metrics: proxy.NewMetrics(proxy.MetricsConfig{Registry: prometheus.NewRegistry(), Mode: "nftables"}),
	}
	if ends {
		cfg.Flows = flows
	}
	loop := proxy.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 3)
	go func() { done <- s.node.Do(func() error { return loop.Run(ctx) }) }()
	go func() { done <- s.node.Do(func() error { return resets.Run(ctx) }) }()
	go func() { done <- flows.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := errors.Join(<-done, <-done, <-done); err != nil {
				s.t.Error(err)
			}
			table.Close()
			dp.Close()
		})
	}
	s.t.Cleanup(stop)
	return stop
}

// dial connects until by answers, because the rules may not exist yet.
func (s *stage) dial(h *testnet.Host, network string, to netip.AddrPort, by string) *testnet.Conn {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := h.Dial(network, to, time.Second)
		if err == nil {
			if got := c.Ask(time.Second); got.By == by {
				s.t.Cleanup(c.Close)
				return c
			}
			c.Close()
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s to %v: %s does not answer: %v", h.Name, to, by, err)
		}
	}
}

// goes sends requests until by answers, because the flow may not have ended yet.
func (s *stage) goes(c *testnet.Conn, by string) {
	s.t.Helper()
	s.eventually(by+" answers", func() bool { return c.Ask(time.Second).By == by })
}

// eventually waits for a condition.
func (s *stage) eventually(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// TestConnectionsEnd: the fate of established connections for each fate of their endpoint.
func TestConnectionsEnd(t *testing.T) {
	yes, no := ready(true), ready(false)
	for name, c := range map[string]struct {
		closing service.TerminationPolicy
		left    *service.SliceEndpoint // the endpoint after the change
		alive   bool
		ends    bool
	}{
		"deleted":                                  {ends: true},
		"not ready":                                {left: &no},
		"left the Service, but lives":              {alive: true},
		"deleted, connections are never closed":    {closing: service.TerminateNever},
		"not ready, and unready ones are closed":   {closing: service.TerminateUnready, left: &no, alive: true, ends: true},
		"ready as before, unready ones are closed": {closing: service.TerminateUnready, left: &yes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, c.closing)
			s.endpoints(&yes, nil)
			s.start(true)
			var all []*testnet.Conn
			udp := s.dial(s.pod, "udp", netip.AddrPortFrom(s.vips[true], 80), "a")
			for is4, vip := range s.vips {
				for _, h := range []*testnet.Host{s.pod, s.node, s.Outside} {
					all = append(all, s.dial(h, "tcp", netip.AddrPortFrom(vip, 80), "a"))
				}
				all = append(all, s.dial(s.Outside, "tcp", netip.AddrPortFrom(s.node.Addr(is4), 30080), "a"))
			}
			s.api.change(func() {
				for _, a := range s.a.Addrs {
					s.api.alive[a] = c.alive
				}
			})
			s.endpoints(c.left, &yes)
			if c.ends {
				for _, conn := range all {
					if err := conn.Wait(patience); !errors.Is(err, unix.ECONNRESET) {
						t.Errorf("%v: %v, want a reset", conn.LocalAddr(), err)
					}
				}
				return
			}
			s.dial(s.Outside, "tcp", netip.AddrPortFrom(s.vips[true], 80), "b") // shows that the pass is done
			if c.left != &yes {
				s.goes(udp, "b") // shows that the search is done
			}
			if c.alive && c.closing == service.TerminateGone {
				// Two questions for each address, because the first answer may be out of date.
				s.eventually("the API server was asked", func() bool { return s.api.asked.Load() == 4 })
			}
			for _, conn := range all {
				if got := conn.Ask(patience); got.By != "a" {
					t.Errorf("%v: %v, want the connection to go on", conn.LocalAddr(), got)
				}
			}
		})
	}
}

// TestAgentKilled: flows became wrong just before an agent was killed. They end when the next agent starts, although
// the next agent finds all rules correct.
func TestAgentKilled(t *testing.T) {
	s := newStage(t, service.TerminateGone)
	yes := ready(true)
	s.endpoints(&yes, nil)
	stop := s.start(false)
	var tcp, udp []*testnet.Conn
	for is4, vip := range s.vips {
		for _, to := range []netip.AddrPort{netip.AddrPortFrom(vip, 80), netip.AddrPortFrom(s.node.Addr(is4), 30080)} {
			tcp = append(tcp, s.dial(s.Outside, "tcp", to, "a"))
			udp = append(udp, s.dial(s.Outside, "udp", to, "a"))
		}
	}
	s.endpoints(nil, &yes)
	for is4, vip := range s.vips {
		s.dial(s.pod, "tcp", netip.AddrPortFrom(vip, 80), "b")
		s.dial(s.pod, "tcp", netip.AddrPortFrom(s.node.Addr(is4), 30080), "b")
	}
	stop()
	for _, c := range udp {
		if got := c.Ask(patience); got.By != "a" {
			t.Fatalf("before the next start: %v; this would prove nothing", got)
		}
	}
	s.api.change(func() {}) // a new agent lists all objects
	s.start(true)
	for _, c := range udp {
		s.goes(c, "b")
	}
	for _, c := range tcp {
		if err := c.Wait(patience); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%v: %v, want a reset", c.LocalAddr(), err)
		}
	}
}

// TestUDP: a client keeps its port. It is refused when the Service has no endpoint, and gets an answer when the Service
// has one again.
func TestUDP(t *testing.T) {
	s := newStage(t, service.TerminateGone)
	yes := ready(true)
	s.endpoints(&yes, nil)
	s.start(true)
	var all []*testnet.Conn
	for is4, vip := range s.vips {
		for _, h := range []*testnet.Host{s.pod, s.Outside} {
			all = append(all, s.dial(h, "udp", netip.AddrPortFrom(vip, 80), "a"), s.dial(h, "udp", netip.AddrPortFrom(s.node.Addr(is4), 30080), "a"))
		}
	}
	s.endpoints(nil, nil)
	for _, c := range all {
		s.eventually("the client is refused", func() bool { return c.Ask(time.Second).Outcome == testnet.Refused })
	}
	s.endpoints(nil, &yes)
	for _, c := range all {
		s.goes(c, "b")
	}
	s.api.change(func() { // remove both UDP addresses
		without := *s.api.service // the loop's earlier object must not change
		without.Ports = without.Ports[:1]
		s.api.service = &without
	})
	for _, c := range all {
		s.eventually("no answer", func() bool { return c.Ask(time.Second).Outcome != testnet.Answered })
	}
}

// TestEndpointsThatAreNoPods: a user may write an endpoint outside the cluster into an EndpointSlice. A missing pod
// with its address does not prove that the endpoint is gone.
func TestEndpointsThatAreNoPods(t *testing.T) {
	s := newStage(t, service.TerminateGone)
	s.pods = []netip.Prefix{netip.MustParsePrefix("10.245.0.0/16")} // a and b are outside
	yes, drains := ready(true), service.SliceEndpoint{Node: "node", Serving: true, Terminating: true}
	s.api.nameless = true
	s.endpoints(&yes, nil)
	s.start(true)
	to := netip.AddrPortFrom(s.vips[true], 80)
	toA := s.dial(s.pod, "tcp", to, "a")
	s.endpoints(&drains, &yes)
	s.dial(s.pod, "tcp", to, "b")
	s.endpoints(nil, &yes)
	udp := s.dial(s.pod, "udp", to, "b")
	s.endpoints(nil, nil)
	s.eventually("UDP is refused", func() bool { return udp.Ask(time.Second).Outcome == testnet.Refused }) // shows that a search was made
	if got := toA.Ask(patience); got.By != "a" || s.api.asked.Load() > 0 {
		t.Errorf("%v, %d questions; want the connection to go on, and none", got, s.api.asked.Load())
	}
}

// TestUnansweredQuestion: a question without an answer about one pod does not delay the reset of another pod's
// connections.
func TestUnansweredQuestion(t *testing.T) {
	s := newStage(t, service.TerminateGone)
	yes := ready(true)
	s.api.hangs["a"] = true
	s.endpoints(&yes, nil)
	s.start(true)
	to := netip.AddrPortFrom(s.vips[true], 80)
	toA := s.dial(s.pod, "tcp", to, "a")
	s.endpoints(nil, &yes)
	s.eventually("the question about a", func() bool { return s.api.hanging.Load() > 0 })
	toB := s.dial(s.pod, "tcp", to, "b")
	s.endpoints(nil, nil)
	if err := toB.Wait(patience); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("b is gone: %v, want a reset", err)
	}
	if got := toA.Ask(patience); got.By != "a" {
		t.Errorf("it is not known whether a is gone: %v, want the connection to go on", got)
	}
}
