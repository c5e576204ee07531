//go:build uml

package ipvs_test

import (
	"bufio"
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/ipvs"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/service"
)

// pause waits in virtual time.
func pause(d time.Duration) { <-time.After(d) }

func (r *rig) check(want bool) {
	r.t.Helper()
	r.do(func() error {
		got, err := r.dp.Check(r.t.Context())
		if err == nil && got.Any() == want {
			r.t.Errorf("Check says %+v, want intact %v", got, want)
		}
		return err
	})
}

// real reports whether an endpoint is a real server, and its weight.
func (r *rig) real(e service.Endpoint) (there bool, weight string) {
	r.t.Helper()
	for line := range strings.Lines(r.run("ipvsadm", "-Ln")) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == e.Addr.String() {
			return true, f[3]
		}
	}
	return false, ""
}

// An endpoint that leaves gets weight 0 while it has connections. It is removed when they have ended or its time is
// over. UDP is removed at once. Connections stay.
func TestDrain(t *testing.T) {
	dp, err := ipvs.New(ipvs.Config{Drain: 30 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, dp)
	leaving := r.eps[0]
	state := func(when string, there bool) {
		t.Helper()
		r.check(true)
		if got, weight := r.real(leaving); got != there || got && weight != "0" {
			t.Errorf("%s: it is there: %v, with weight %q; want %v", when, got, weight, there)
		}
	}
	r.sync(frontend(0, api.TCP, 0, leaving), frontend(1, api.UDP, 0, leaving))
	c := r.dial(r.from(0), vip(0))
	r.sync(frontend(0, api.TCP, 0, r.eps[1]), frontend(1, api.UDP, 0, r.eps[1]))
	state("just left", true)
	if out := r.run("ipvsadm", "-Ln", "-u", "250.64.0.2:1"); strings.Contains(out, leaving.Addr.String()) {
		t.Errorf("UDP keeps it:\n%s", out)
	}
	for range 3 {
		pause(5 * time.Minute)
		if at := r.ask(c); at != leaving.Addr {
			t.Errorf("answered by %v", at)
		}
		state("with a connection", true)
	}
	r.end(c)
	pause(5 * time.Minute)
	state("its connection has ended", false)

	r.sync(frontend(0, api.TCP, 0, leaving))
	c = r.dial(r.from(0), vip(0))
	r.sync(frontend(0, api.TCP, 0, r.eps[1]))
	for range 4 {
		pause(10 * time.Minute)
		r.ask(c)
	}
	state("its time is over", false)
	if at := r.ask(c); at != leaving.Addr {
		t.Errorf("without a real server answered by %v", at)
	}
}

// TestUnanswered: an endpoint does not answer a connection's first packet. Then the endpoint gets no new connections
// any more, and conntrack forgets the connection. The client's next packet goes to another endpoint, whatever IPVS
// remembers. This also holds if the endpoint is removed at once, and if the client has affinity.
func TestUnanswered(t *testing.T) {
	for name, change := range map[string]func(*service.Frontend){
		"rr":       func(*service.Frontend) {},
		"sh":       func(f *service.Frontend) { f.Balance = service.SourceHash },
		"affinity": func(f *service.Frontend) { f.Affinity = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, open(t))
			dead, alive := r.eps[1], r.eps[0]
			with := func(e service.Endpoint) *service.Frontend {
				f := frontend(0, api.TCP, service.RoundRobin, e)
				change(f)
				return f
			}
			r.sync(with(dead))
			fabric := func(text string) (out []byte) {
				if err := r.net.Fabric.Do(func() (err error) { out, err = exec.Command("nft", text).CombinedOutput(); return err }); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return out
			}
			fabric("add table ip silent; add chain ip silent f { type filter hook forward priority 0; }; add rule ip silent f ip daddr " + dead.Addr.Addr().String() + " counter drop")
			done := make(chan error, 1)
			var c net.Conn
			go func() {
				done <- r.client.Do(func() (err error) {
					d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(r.from(0)), Timeout: patience}
					c, err = d.DialContext(t.Context(), "tcp", vip(0).String())
					return err
				})
			}()
			for bytes.Contains(fabric("list table ip silent"), []byte("packets 0 ")) {
				pause(100 * time.Millisecond)
			}
			r.sync(with(alive))
			r.do(func() error {
				log := slog.New(slog.DiscardHandler)
				ender := conntrack.NewEnder(log, conntrack.New(conntrack.Config{Log: log}), func([]conntrack.Entry) {})
				result, err := ender.EndFlows(t.Context(), []flow.Flow{{Proto: api.TCP, Frontend: vip(0), Endpoint: dead.Addr, OnlyUnanswered: true}})
				if result.Ended != 1 {
					t.Errorf("%d connections are forgotten", result.Ended)
				}
				return err
			})
			if err := <-done; err != nil {
				t.Fatalf("no connection: %v", err)
			}
			defer c.Close()
			line, err := bufio.NewReader(c).ReadString('\n')
			if err != nil || !strings.Contains(line, alive.Addr.String()) {
				t.Errorf("answer %q, %v, want %v", line, err, alive.Addr)
			}
		})
	}
}

// After a restart during the drain, the endpoint still drains, and it may return.
func TestDrainRestart(t *testing.T) {
	r := newRig(t, open(t))
	r.sync(frontend(0, api.TCP, 0, r.eps[:2]...))
	c := r.dial(r.from(0), vip(0))
	var left service.Endpoint
	for _, e := range r.eps[:2] {
		if e.Addr != c.at {
			left = e
		}
	}
	r.sync(frontend(0, api.TCP, 0, left))
	r.dp.Close()
	r.dp = open(t)
	t.Cleanup(r.dp.Close)
	r.sync(frontend(0, api.TCP, 0, left))
	if there, weight := r.real(service.Endpoint{Addr: c.at}); !there || weight != "0" {
		t.Errorf("after a restart it is there: %v, with weight %q", there, weight)
	}
	r.sync(frontend(0, api.TCP, 0, r.eps[:2]...))
	if there, weight := r.real(service.Endpoint{Addr: c.at}); !there || weight != "1" {
		t.Errorf("come back it is there: %v, with weight %q", there, weight)
	}
	if at := r.ask(c); at != c.at {
		t.Errorf("answered by %v, before by %v", at, c.at)
	}
}

// TestRestart: the next process reads the kernel once. It writes only elements, rules, routes and virtual servers that
// differ. Connections and clients keep their endpoints.
func TestRestart(t *testing.T) {
	r := newRig(t, open(t))
	table := func(n int) (all []*service.Frontend) {
		for i := range n {
			all = append(all, frontend(i, api.TCP, service.RoundRobin, r.eps...))
		}
		all[0].Affinity = time.Hour
		return all
	}
	r.sync(table(100)...)
	held := r.dial(r.from(0), vip(0))
	changes := r.node.Changes()
	for _, c := range []struct {
		what     string
		services int
		writes   int // calls that change virtual servers
		changes  int // largest number of changes of rules and routes
	}{{"the same", 100, 0, 0}, {"a Service more", 101, 1, 10}, {"a Service less", 100, 1, 10}} {
		r.dp.Close()
		r.dp = open(t)
		t.Cleanup(r.dp.Close)
		reads, writes := ipvs.CountAccess(r.dp)
		changes.Count()
		r.do(func() error {
			_, err := r.dp.Adopt(t.Context())
			return err
		})
		r.sync(table(c.services)...)
		if n := changes.Count(); n > c.changes || (n == 0) != (c.changes == 0) {
			t.Errorf("%s: %d changes in the kernel, want %d at most", c.what, n, c.changes)
		}
		if *reads != 1 || *writes != c.writes {
			t.Errorf("%s: it read the kernel %d times and wrote %d times, want 1 and %d", c.what, *reads, *writes, c.writes)
		}
		changes.Count()
		r.do(func() error {
			_ = r.dp.Info()
			_, err := r.dp.Check(t.Context())
			_, explain := r.dp.Explain(t.Context(), table(1)[0].Key())
			_, counts := r.dp.Counts(t.Context())
			return errors.Join(err, explain, counts)
		})
		if n := changes.Count(); n != 0 || *writes != c.writes {
			t.Errorf("%s: who only asks has written %d virtual servers and %d times in the kernel", c.what, *writes-c.writes, n)
		}
		if at := r.ask(held); at != held.at {
			t.Errorf("%s: the connection is answered by %v, was at %v", c.what, at, held.at)
		}
		if now := r.dial(r.from(0), vip(0)); now.at != held.at {
			t.Errorf("%s: the client with affinity is at %v, was at %v", c.what, now.at, held.at)
		}
	}
}

// A client keeps its endpoint for its affinity time, and for the time that IPVS remembers its connections.
func TestAffinityEnds(t *testing.T) {
	r := newRig(t, open(t))
	f := frontend(0, api.TCP, service.RoundRobin, r.eps...)
	f.Affinity = time.Hour
	r.sync(f)
	visit := func(client int) netip.AddrPort {
		c := r.dial(r.from(client), vip(0))
		r.end(c)
		return c.at
	}
	home := visit(0)
	for range 8 {
		pause(50 * time.Minute) // a new connection renews it
		if now := visit(0); now != home {
			t.Fatalf("moved from %v to %v", home, now)
		}
	}
	pause(90 * time.Minute)
	// The next endpoint in turn is another one.
	if now := visit(0); now == home {
		t.Errorf("still at %v", home)
	}
}

// IPVS forgets an idle connection, and the connection continues.
func TestForgotten(t *testing.T) {
	dp, err := ipvs.New(ipvs.Config{TCPTimeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, dp)
	r.sync(frontend(0, api.TCP, 0, r.eps...))
	c := r.dial(r.from(0), vip(0))
	pause(10 * time.Second) // shorter than the time to the first keepalive
	if out := r.run("ipvsadm", "-Lnc"); strings.Contains(out, c.at.String()) {
		t.Errorf("IPVS remembers:\n%s", out)
	}
	if at := r.ask(c); at != c.at {
		t.Errorf("answered by %v, before by %v", at, c.at)
	}
}

// IPVS recognizes a reply by client and endpoint alone. A client uses one port for connections to one endpoint: by two
// addresses and directly. Each connection gets its own replies.
func TestOnePort(t *testing.T) {
	r := newRig(t, open(t))
	r.sync(frontend(0, api.TCP, 0, r.eps[0]), frontend(1, api.TCP, 0, r.eps[0]))
	from := netip.AddrPortFrom(r.addrs[0], 4711)
	a, b := r.dial(from, vip(0)), r.dial(from, vip(1))
	for range 3 {
		for _, c := range []*conn{a, b} {
			if at := r.ask(c); at != r.eps[0].Addr {
				t.Errorf("%v: answered by %v", c.RemoteAddr(), at)
			}
		}
	}
	_ = a.SetLinger(0)
	_ = a.Close() // a reset, which IPVS does not see
	_ = b.SetLinger(0)
	_ = b.Close()
	if out := r.run("ipvsadm", "-Lnc"); !strings.Contains(out, from.String()) {
		t.Errorf("IPVS has forgotten already:\n%s", out)
	}
	direct := r.dial(from, r.eps[0].Addr)
	if at := r.ask(direct); at != r.eps[0].Addr {
		t.Errorf("directly: answered by %v", at)
	}
}

// Check finds and repairs another program's changes of Fairway's virtual servers and routes.
func TestOtherProgram(t *testing.T) {
	r := newRig(t, open(t))
	want := []*service.Frontend{frontend(0, api.TCP, 0, r.eps...), frontend(1, api.TCP, 0, r.eps[1])}
	r.sync(want...)
	r.check(true)
	for _, harm := range []string{
		"ipvsadm -C",
		"ipvsadm -d -t 250.64.0.2:1 -r 10.244.2.6:8080",
		"ipvsadm -e -t 250.64.0.2:1 -r 10.244.2.6:8080 -m -w 7",
		"ipvsadm -E -t 250.64.0.1:1 -s lc",
		"ip route del local 250.64.0.0/10 table local",
		"nft flush chain inet fairway-ipvs services",
		"nft flush map inet fairway-ipvs servers4",
	} {
		pause(time.Minute) // Check reads at intervals
		r.check(true)
		f := strings.Fields(harm)
		r.run(f[0], f[1:]...)
		pause(time.Minute)
		r.check(false)
		r.sync(want...)
		pause(time.Minute)
		r.check(true)
		for i := range want {
			r.end(r.dial(r.from(0), vip(i)))
		}
	}
}

// Virtual servers of other programs stay unchanged. No packet reaches Fairway's virtual servers past the rules.
func TestForeign(t *testing.T) {
	r := newRig(t, open(t))
	r.run("ipvsadm", "-A", "-t", "192.0.2.7:80", "-s", "rr")
	r.sync(frontend(0, api.TCP, 0, r.eps...))
	c := r.client.Ask("tcp", netip.MustParseAddrPort("250.64.0.1:1"), patience)
	if c.By != "" {
		t.Errorf("a virtual server answers those who call it: %v", c)
	}
	r.do(func() error { return r.dp.Cleanup(t.Context()) })
	out := r.run("ipvsadm", "-Ln")
	if !strings.Contains(out, "192.0.2.7:80") || strings.Contains(out, "250.64.") {
		t.Errorf("after Cleanup:\n%s", out)
	}
}

// Every connection is counted.
func TestCounts(t *testing.T) {
	r := newRig(t, open(t))
	f := frontend(0, api.TCP, 0, r.eps...)
	r.sync(f)
	for range 7 {
		r.end(r.dial(r.from(0), vip(0)))
	}
	pause(5 * time.Second) // the kernel updates its counters every other second
	r.do(func() error {
		counts, err := r.dp.Counts(t.Context())
		if got := counts[f.Service].Connections; got != 7 {
			t.Errorf("counted %d connections of 7: %v", got, counts)
		}
		return err
	})
}
