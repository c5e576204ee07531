package ebpf_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// ejecting returns a Service of the rig's two endpoints and a third, which ejects endpoints.
func (r *rig) ejecting(addr string, third netip.AddrPort, first time.Duration) *service.Frontend {
	f := r.front(addr)
	f.Ejection = first
	f.Internal.Endpoints = append(f.Internal.Endpoints, service.Endpoint{Addr: third, Local: true})
	f.Internal.Spare = 1
	return f
}

// silence makes an endpoint that answers no SYN.
func (r *rig) silence() netip.AddrPort {
	r.t.Helper()
	at := netip.MustParseAddrPort("10.244.1.30:8080")
	pod := r.net.Pod(r.node, "silent", at.Addr())
	if err := pod.Do(func() error { return filter("tcp dport 8080 drop") }); err != nil {
		r.t.Fatal(err)
	}
	return at
}

// filter adds a rule to the packets into the namespace.
func filter(rule string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader("table ip test {\n chain in {\n type filter hook input priority 0;\n " + rule + "\n }\n}\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// fail counts the connects that fail.
func (r *rig) fail(to netip.AddrPort, connects int, patience time.Duration) (failed int) {
	r.t.Helper()
	return r.failures(r.client, to, connects, patience)
}

func (r *rig) failures(h *testnet.Host, to netip.AddrPort, connects int, patience time.Duration) (failed int) {
	r.t.Helper()
	err := h.Do(func() error {
		for range connects {
			c, err := dial(to)(&net.Dialer{Timeout: patience})
			if err != nil {
				failed++
				continue
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return failed
}

// ejected returns what the agent says about ejected endpoints.
func (r *rig) ejected() (all []string) {
	r.t.Helper()
	r.do(func() error {
		list, err := r.dp.Ejected(context.Background())
		for _, e := range list {
			all = append(all, fmt.Sprintf("%v %s", e.Endpoint, e.Reason))
		}
		return err
	})
	return all
}

// confirmed waits until the agent's own connection has failed, too.
func (r *rig) confirmed() (all []string) {
	r.t.Helper()
	for end := time.Now().Add(2*time.Second + testnet.Patience); len(all) == 0 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) { // poll
		all = r.ejected()
	}
	return all
}

// TestEject: an endpoint that refuses or stays silent fails a first connection, and then none.
func TestEject(t *testing.T) {
	r := newRig(t)
	refusing := netip.AddrPortFrom(r.endpoints[0].Addr(), 9)
	silent := r.silence()
	for name, test := range map[string]struct {
		dead     netip.AddrPort
		patience time.Duration
		reason   string
		by       []service.Algorithm
	}{
		"refused": {refusing, time.Second, "refused", []service.Algorithm{service.Random, service.RoundRobin, service.LeastConn}},
		"silent":  {silent, 4 * time.Second, "no answer", []service.Algorithm{service.Random, service.NeverQueue}},
	} {
		for _, by := range test.by {
			f := r.ejecting("10.96.0.1:80", test.dead, time.Minute)
			f.Balance = by
			r.sync(f)
			if n := r.fail(f.Addr, 1000, test.patience); n < 1 || n > 2 {
				t.Errorf("%s, %v: %d of 1000 connects failed, want 1 or 2", name, by, n)
			}
			if all, want := r.confirmed(), []string{fmt.Sprintf("%v %s", test.dead, test.reason)}; !slices.Equal(all, want) {
				t.Errorf("%s, %v: ejected are %q, want %q", name, by, all, want)
			}
			if text := strings.Join(r.explained(f, "endpoints"), "\n"); !strings.Contains(text, ": 0 open, ejected since ") || !strings.Contains(text, ": "+test.reason) {
				t.Errorf("%s, %v: fairway dump has no ejection:\n%s", name, by, text)
			}
			r.clean()
		}
	}
}

// clean is a new node: nothing is ejected.
func (r *rig) clean() {
	r.t.Helper()
	r.do(func() error { return r.dp.Cleanup(context.Background()) })
	r.reopen()
}

// TestEjectOff: without ejection, and where no endpoint can be spared, each connection is tried.
func TestEjectOff(t *testing.T) {
	r := newRig(t)
	refusing := netip.AddrPortFrom(r.endpoints[0].Addr(), 9)
	off, last := r.ejecting("10.96.0.1:80", refusing, 0), r.ejecting("10.96.0.2:80", refusing, time.Minute)
	last.Internal.Endpoints, last.Internal.Spare = last.Internal.Endpoints[2:], 0
	off.Balance = service.RoundRobin
	r.sync(off, last)
	if n := r.fail(last.Addr, 10, time.Second); n != 10 {
		t.Errorf("%d of 10 connects to a single dead endpoint failed", n)
	}
	if n := r.fail(off.Addr, 30, time.Second); n != 10 {
		t.Errorf("without ejection %d of 30 connects failed, want 10", n)
	}
	if all := r.ejected(); len(all) > 0 {
		t.Errorf("ejected are %v", all)
	}
	// One setting is enough, while the Service is in use.
	on := r.ejecting(off.Addr.String(), refusing, time.Minute)
	r.sync(on, last)
	if n := r.fail(on.Addr, 300, time.Second); n != 1 {
		t.Errorf("with ejection %d of 300 connects failed, want 1", n)
	}
	r.sync(off, last)
	if n := r.fail(off.Addr, 300, time.Second); n < 60 {
		t.Errorf("after ejection was turned off, only %d of 300 connects failed", n)
	}
}

// TestHalf: at least half of the endpoints get connections.
func TestHalf(t *testing.T) {
	r := newRig(t)
	f := r.ejecting("10.96.0.1:80", netip.AddrPortFrom(r.endpoints[0].Addr(), 9), time.Minute)
	for port := uint16(10); port < 12; port++ {
		f.Internal.Endpoints = append(f.Internal.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(r.endpoints[1].Addr(), port)})
	}
	f.Internal.Spare = 2 // of five, three of them dead
	r.sync(f)
	n := r.fail(f.Addr, 600, time.Second)
	if n < 140 || n > 260 {
		t.Errorf("%d of 600 connects failed, want a third: three endpoints stay, one of them dead", n)
	}
}

// TestTry: after its pause one socket tries an ejected endpoint. A failure doubles the pause.
func TestTry(t *testing.T) {
	r := newRig(t)
	dead := netip.AddrPortFrom(r.endpoints[0].Addr(), 9)
	f := r.ejecting("10.96.0.1:80", dead, time.Second)
	r.sync(f)
	if n := r.fail(f.Addr, 100, time.Second); n != 1 {
		t.Errorf("%d of 100 connects failed, want 1", n)
	}
	begin := time.Now()
	var at []time.Duration
	for time.Since(begin) < 3500*time.Millisecond {
		if r.fail(f.Addr, 1, time.Second) > 0 {
			at = append(at, time.Since(begin))
		}
		time.Sleep(5 * time.Millisecond) // poll
	}
	if len(at) != 2 || at[0] < 500*time.Millisecond || at[0] > 1500*time.Millisecond || at[1]-at[0] < 1900*time.Millisecond {
		t.Errorf("sockets tried the endpoint after %v, want about 1 s and 2 s later", at)
	}
	stop := r.pods[0].Serve("tcp", dead)
	defer stop()
	for end := time.Now().Add(2 * testnet.Patience); ; {
		r.ejected() // the agent tries it
		if r.fail(f.Addr, 20, time.Second) > 0 {
			t.Error("a connection failed after the endpoint has come back")
		}
		if r.chosen(f, dead) {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the endpoint does not come back")
		}
		time.Sleep(100 * time.Millisecond) // poll
	}
}

// chosen reports whether a socket gets the endpoint.
func (r *rig) chosen(f *service.Frontend, at netip.AddrPort) (is bool) {
	all := r.hold(f.Addr, 12)
	for i, e := range f.Internal.Endpoints {
		is = is || e.Addr == at && r.open(f, i) > 0
	}
	for _, c := range all {
		c.Close()
	}
	return is
}

// TestRulesFollow: clients that nf_tables serves get no endpoint that fails the node's own connections.
func TestRulesFollow(t *testing.T) {
	r := newRig(t)
	dead := netip.MustParseAddrPort("10.244.1.12:8080") // a pod without the server
	r.net.Pod(r.node, "dead", dead.Addr())
	svc := &service.Service{Name: api.Name{Namespace: "default", Name: "web"}, ClusterIPs: []netip.Addr{web.Addr()}, Ports: []service.Port{{Proto: api.TCP, Port: 80}}}
	slice := &service.Slice{Name: svc.Name, Service: svc.Name, Ports: []service.SlicePort{{Proto: api.TCP, Port: 8080}}}
	for _, e := range append([]netip.AddrPort{dead}, r.endpoints...) {
		slice.Endpoints = append(slice.Endpoints, service.SliceEndpoint{Addr: e.Addr(), Node: "node-1", Ready: true, Serving: true})
	}
	facts := service.Facts{Node: service.Node{Name: "node-1", Ejection: time.Minute, Settings: service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}}
	sync := func() *service.Frontend {
		b := service.NewBuilder()
		b.Set(service.Compile(svc, []*service.Slice{slice}, facts))
		table := b.Table(facts.Settings)
		r.do(func() error { _, err := r.dp.Sync(context.Background(), table); return err })
		return table.Entry(svc.Name).Frontends[0]
	}
	sync()
	if n := r.failures(r.stranger, web, 60, time.Second); n < 5 {
		t.Errorf("%d of 60 connects of a client of nf_tables failed, want a third", n)
	}
	if n := r.fail(web, 100, time.Second); n != 1 {
		t.Errorf("%d of 100 connects of a pod failed, want 1", n)
	}
	r.confirmed()
	r.do(func() error {
		all, err := r.dp.Ejected(context.Background())
		for _, e := range all {
			facts.Ejected = append(facts.Ejected, e.Endpoint)
		}
		return err
	})
	if f := sync(); len(f.Internal.Endpoints) != 2 {
		t.Errorf("the table has %d endpoints, want 2", len(f.Internal.Endpoints))
	}
	if n := r.failures(r.stranger, web, 60, time.Second); n > 0 {
		t.Errorf("%d of 60 connects failed although the rules leave the endpoint out", n)
	}
	r.reopen()
	for _, when := range []string{"before its first Sync", "after its first Sync"} {
		if all := r.ejected(); len(all) != 1 {
			t.Errorf("%s an agent that restarts knows the ejections %q, want one", when, all)
		}
		sync()
	}
	facts.Ejected = nil
	sync()
	if n := r.fail(web, 100, time.Second); n > 0 {
		t.Errorf("%d of 100 connects of a pod failed, although the endpoint is still ejected", n)
	}
}

// picky makes an endpoint that drops the packets of the rig's client.
func (r *rig) picky() netip.AddrPort {
	r.t.Helper()
	at := netip.MustParseAddrPort("10.244.1.31:8080")
	pod := r.net.Pod(r.node, "picky", at.Addr())
	pod.Serve("tcp", at)
	if err := pod.Do(func() error { return filter("ip saddr 10.244.1.5 drop") }); err != nil {
		r.t.Fatal(err)
	}
	return at
}

// TestOthersAnswered: the silence that one client sees does not eject an endpoint that answers other clients meanwhile.
func TestOthersAnswered(t *testing.T) {
	r := newRig(t)
	denied, allowed := r.ejecting("10.96.0.1:80", r.picky(), time.Minute), r.front("10.96.0.2:80")
	denied.Internal.Endpoints = denied.Internal.Endpoints[2:]
	allowed.Internal.Endpoints = denied.Internal.Endpoints
	r.sync(denied, allowed)
	done := make(chan int, 1)
	go func() { done <- r.fail(denied.Addr, 1, 4*time.Second) }()
	for {
		select {
		case n := <-done:
			if text := r.explained(denied, "endpoints"); n != 1 || len(text) != 1 || strings.Contains(text[0], "ejected") {
				t.Errorf("%d of 1 connect of the denied client failed; the endpoint is %q", n, text)
			}
			return
		case <-time.After(20 * time.Millisecond):
			if err := r.node.Do(func() error {
				c, err := dial(allowed.Addr)(&net.Dialer{Timeout: time.Second})
				if err == nil {
					c.Close()
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDenied: clients that a network policy denies eject an endpoint only until the agent has tried it.
func TestDenied(t *testing.T) {
	r := newRig(t)
	f := r.ejecting("10.96.0.1:80", r.picky(), time.Minute)
	r.sync(f)
	r.ejected() // the loop asks from the start on
	if n := r.fail(f.Addr, 50, 4*time.Second); n < 1 || n > 2 {
		t.Errorf("%d of 50 connects of the denied client failed, want 1 or 2", n)
	}
	for end := time.Now().Add(2*time.Second + testnet.Patience); ; time.Sleep(50 * time.Millisecond) { // poll
		if all := r.ejected(); len(all) > 0 {
			t.Fatalf("the agent believes the denied client: %v", all)
		}
		allowed := false
		err := r.node.Do(func() error {
			for range 20 {
				c, err := dial(f.Addr)(&net.Dialer{Timeout: time.Second})
				if err != nil {
					return err
				}
				defer c.Close()
				allowed = allowed || r.open(f, 2) > 0
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if allowed {
			return
		}
		if time.Now().After(end) {
			t.Fatal("an allowed client does not get the endpoint")
		}
	}
}

// TestTrySilent: an endpoint does not come back because nobody chose it, or because clients do not wait for its answer.
func TestTrySilent(t *testing.T) {
	r := newRig(t)
	f := r.ejecting("10.96.0.1:80", r.silence(), 4*time.Second)
	f.Balance = service.LeastConn
	r.sync(f)
	if n := r.fail(f.Addr, 20, 4*time.Second); n < 1 || n > 2 {
		t.Errorf("%d of 20 connects failed, want 1 or 2", n)
	}
	failed := 0
	for begin := time.Now(); time.Since(begin) < 8*time.Second; time.Sleep(20 * time.Millisecond) { // poll
		failed += r.fail(f.Addr, 1, 500*time.Millisecond)
	}
	if failed == 0 || failed > 6 { // one in 1.5 s, while clients give up before they see silence
		t.Errorf("%d connects tried the silent endpoint in 8 s", failed)
	}
}
