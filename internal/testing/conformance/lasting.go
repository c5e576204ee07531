package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// six returns the endpoints of the tests in this file. Endpoints with even numbers are on node-1, the node of the
// table.
func six() []service.Endpoint {
	var out []service.Endpoint
	for i := range 6 {
		addr, node := scenario.PodAddr(i, true)
		out = append(out, service.Endpoint{Addr: netip.AddrPortFrom(addr, 8080), Local: node == "node-1"})
	}
	return out
}

func sixRig(t testing.TB, s suite) *rig {
	eps := map[service.Key]string{}
	for i, e := range six() {
		_, node := scenario.PodAddr(i, true)
		for _, proto := range []api.Proto{api.TCP, api.UDP, api.SCTP} {
			eps[service.Key{Addr: e.Addr, Proto: proto}] = node
		}
	}
	return newRig(t, s, "node-1", eps)
}

// web returns a frontend that forwards a protocol to some of six, or rejects packets if which is empty.
func web(name, at string, p api.Proto, which ...int) *service.Frontend {
	all := six()
	route := &service.Route{Masquerade: service.MasqueradeOffCluster}
	for _, i := range which {
		route.Endpoints = append(route.Endpoints, all[i])
	}
	// The contract asks for sorted endpoints. node-1's pods come before node-2's.
	route.Endpoints = sorted(route.Endpoints)
	if len(which) == 0 {
		route = &service.Route{Action: service.Reject}
	}
	return &service.Frontend{
		Addr: netip.MustParseAddrPort(at), Proto: p, Internal: route, External: route,
		Service: api.PortName{Name: api.Name{Namespace: "default", Name: name}},
	}
}

func tableOf(frontends ...*service.Frontend) *service.Table {
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	return service.NewTable(service.Settings{Pods: pods}, frontends)
}

// cleanup: Cleanup removes all traces of the datapath, and touches no object of another program.
func (s suite) cleanup(t testing.TB) {
	r := sixRig(t, s)
	foreign := "table ip theirs {\n\tchain c {\n\t\ttype nat hook prerouting priority dstnat;\n\t\ttcp dport 9 drop\n\t}\n}\n"
	report(t, r.node.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(foreign)
		return cmd.Run()
	}))
	clean := func() error {
		return r.node.Do(func() error { return r.dp.Cleanup(context.Background()) })
	}
	before := r.ruleset()
	table := tableOf(web("a", "10.96.0.1:80", api.TCP, 0, 1, 2), web("b", "[fd00:10:96::1]:80", api.TCP))
	for _, step := range []string{"on a node that it never saw", "after a sync", "by a new instance", "twice"} {
		switch step {
		case "after a sync":
			report(t, r.sync(table))
		case "by a new instance":
			report(t, r.sync(table))
			r.reopen()
		}
		if err := clean(); err != nil {
			t.Errorf("cleanup %s: %v", step, err)
		}
		if after := r.ruleset(); after != before {
			t.Errorf("cleanup %s left a trace\n--- before\n%s--- after\n%s", step, before, after)
		}
	}
	// The same instance can begin again.
	report(t, r.sync(table))
	report(t, r.checkSynced(table))
	report(t, r.packets(r.everywhere(table)))
}

// ruleset returns the state of the node that a mechanism could change.
func (r *rig) ruleset() string {
	return r.output("nft list ruleset", "ip rule", "ip -6 rule", "ip route show table all", "ip -o link")
}

// output returns the output of commands on the node.
func (r *rig) output(commands ...string) string {
	var all strings.Builder
	err := r.node.Do(func() error {
		for _, cmd := range commands {
			f := strings.Fields(cmd)
			out, err := exec.Command(f[0], f[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", cmd, err, out)
			}
			fmt.Fprintf(&all, "# %s\n%s", cmd, out)
		}
		return nil
	})
	if err != nil {
		r.t.Error(err)
	}
	return all.String()
}

// established: a connection stays with its endpoint when other things change.
func (s suite) established(t testing.TB) {
	r := sixRig(t, s)
	const at = "10.96.0.1:80"
	report(t, r.sync(tableOf(web("a", at, api.TCP, 0), web("a", at, api.UDP, 0))))
	var conns []*testnet.Conn
	for _, place := range []scenario.Place{scenario.World.Pod, scenario.World.Node, scenario.World.Outside} {
		for _, network := range []string{"tcp", "udp"} {
			c, err := r.hosts[place.V4].Dial(network, netip.MustParseAddrPort(at), s.patience)
			if err != nil {
				t.Fatalf("%s, %s: %v", place.Name, network, err)
			}
			defer c.Close()
			conns = append(conns, c)
		}
	}
	still := func(when string) {
		t.Helper()
		for _, c := range conns {
			if got := c.Ask(s.patience); got.Outcome != testnet.Answered || got.At != six()[0].Addr {
				t.Errorf("%s: %v is %v", when, c.LocalAddr(), got)
			}
		}
	}
	change := func(when string, table *service.Table) {
		t.Helper()
		report(t, r.sync(table))
		still(when)
	}
	still("at the start")
	b := web("b", "10.96.0.2:80", api.TCP, 1, 2)
	change("after another Service came", tableOf(web("a", at, api.TCP, 0), web("a", at, api.UDP, 0), b))
	more := tableOf(web("a", at, api.TCP, 0, 1, 2, 3), web("a", at, api.UDP, 0, 1, 2, 3), b)
	change("after its own Service grew", more)
	r.replace()
	change("after a restart", more)
	change("after its own Service shrank", tableOf(web("a", at, api.TCP, 0, 3), web("a", at, api.UDP, 0, 3)))
	r.replace()
	change("after a restart with another table", tableOf(web("a", at, api.TCP, 4, 0), web("a", at, api.UDP, 4, 0), b))
}

// continuity: while endpoints come and go, an endpoint of the Service answers every request. Services that do not
// change are not affected.
func (s suite) continuity(t testing.TB) {
	r := sixRig(t, s)
	rng := testnet.Random(t)
	next := func() *service.Table {
		// Endpoint 0 is always there, with a random number of others.
		some := append([]int{0}, rng.Perm(5)[:rng.IntN(6)]...)
		for i := range some[1:] {
			some[i+1]++
		}
		return tableOf(web("changing", "10.96.0.1:80", api.TCP, some...), web("steady", "10.96.0.2:80", api.TCP, 0, 1))
	}
	report(t, r.sync(next()))
	load := r.load([]request{{to: "10.96.0.1:80", by: six()}, {to: "10.96.0.2:80", by: six()[:2]}})
	for i := range s.changes {
		if i%20 == 19 {
			r.replace()
		}
		table := next()
		if err := errors.Join(r.sync(table), r.checkSynced(table)); err != nil {
			t.Errorf("change %d: %v", i, err)
			break
		}
	}
	report(t, load())
}

// faults: one write of ten fails, and sometimes all writes do. Sync is repeated until it succeeds, as internal/proxy
// does.
func (s suite) faults(t testing.TB) {
	rng := testnet.Random(t)
	gen := s.objects(rng)
	facts := gen.Facts()
	eps := pods(gen)
	for i, e := range six() {
		_, eps[service.Key{Addr: e.Addr, Proto: api.TCP}] = scenario.PodAddr(i, true)
	}
	r := newRig(t, s, facts.Name, eps)
	steady := web("steady", "10.96.100.1:80", api.TCP, 0, 1)
	state := scenario.NewState(facts)
	with := func() *service.Table {
		table := state.Table()
		all := append(table.Sorted(), steady)
		return service.NewTable(table.Settings, all)
	}
	report(t, r.sync(with()))
	load := r.load([]request{{to: "10.96.100.1:80", by: six()[:2]}})
	injected := errors.New("injected fault")
	failed := 0
	for step := range s.changes {
		for range 1 + rng.IntN(4) {
			state.Apply(gen.Event())
		}
		r.dp.FailWrites(func() error {
			if rng.IntN(10) == 0 || step%20 == 19 && failed%3 != 2 {
				failed++
				return injected
			}
			return nil
		})
		table := with()
		err := r.sync(table)
		for tries := 0; err != nil && tries < 50; tries++ {
			if !errors.Is(err, injected) {
				t.Fatalf("step %d: %v", step, err)
			}
			err = r.sync(table)
		}
		r.dp.FailWrites(nil)
		if err := errors.Join(err, r.checkSynced(table)); err != nil {
			report(t, err)
			t.Fatalf("step %d, after %d faults", step, failed)
		}
	}
	if failed == 0 {
		t.Error("no write was asked whether it may fail")
	}
	t.Logf("%d faults", failed)
	report(t, load())
	report(t, r.forget())
	report(t, r.packets(sample(rng, r.everywhere(with()), 60)))
}

// spread: each of three endpoints gets its share. With 600 connections a fair choice is outside of 20 to 47 percent
// once in 10^11.
func (s suite) spread(t testing.TB) {
	r := sixRig(t, s)
	report(t, r.sync(tableOf(web("a", "10.96.0.1:80", api.TCP, 0, 1, 2), web("a", "10.96.0.1:80", api.UDP, 0, 1, 2))))
	client := r.hosts[scenario.World.Pod.V4]
	for _, network := range []string{"tcp", "udp"} {
		const total = 600
		count := map[netip.AddrPort]int{}
		for range total {
			got := client.Ask(network, netip.MustParseAddrPort("10.96.0.1:80"), s.patience)
			if got.Outcome != testnet.Answered {
				t.Fatal(got)
			}
			count[got.At]++
		}
		for _, e := range six()[:3] {
			if n := count[e.Addr]; n < total*20/100 || n > total*47/100 {
				t.Errorf("%s: %v got %d of %d", network, e.Addr, n, total)
			}
		}
	}
}

// A request is sent again and again. One of the endpoints in by must answer it.
type request struct {
	to string
	by []service.Endpoint
}

// load sends requests from a pod until stop is called. stop returns the errors.
func (r *rig) load(all []request) (stop func() error) {
	done := make(chan struct{})
	var wait sync.WaitGroup
	errs := make([]error, len(all))
	for i, q := range all {
		wait.Go(func() {
			client := r.hosts[scenario.World.Pod.V4]
			for n := 0; errs[i] == nil; n++ {
				select {
				case <-done:
					if n == 0 {
						errs[i] = fmt.Errorf("no request to %s was made", q.to)
					}
					return
				default:
				}
				got := client.Ask("tcp", netip.MustParseAddrPort(q.to), r.suite.patience)
				if got.Outcome != testnet.Answered || !hasEndpoint(q.by, got.At) {
					errs[i] = fmt.Errorf("request %d to %s: %v", n, q.to, got)
				}
			}
		})
	}
	stop = sync.OnceValue(func() error {
		close(done)
		wait.Wait()
		return errors.Join(errs...)
	})
	r.t.Cleanup(func() { _ = stop() })
	return stop
}
