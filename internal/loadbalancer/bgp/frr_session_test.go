package bgp

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// startFRR starts the speakers of n nodes behind FRR, with lines about the nodes in its configuration, and waits
// until FRR leads to all of them. prepare changes node i's world first.
func startFRR(t *testing.T, n int, peer string, prepare func(i int, w *world), zebra ...string) (r *rack, f *frr, all []string) {
	t.Helper()
	needFRR(t)
	r = newRack(t, n)
	f = newFRR(r, peer, zebra...)
	for i, m := range r.nodes {
		if prepare != nil {
			prepare(i, &m.world)
		}
		r.start(i)
		all = append(all, m.Name)
	}
	r.until(vip4, all...)
	r.until(vip6, all...)
	return r, f, all
}

// TestFRR: three nodes behind FRR share addresses of both families. When a speaker is killed, or the router is killed
// and comes back, the routes in the router's kernel go and return.
func TestFRR(t *testing.T) {
	r, f, all := startFRR(t, 3, "", nil, noNexthops)
	for seen := map[string]bool{}; len(seen) < 3; {
		seen[r.answered(vip4)] = true
	}
	r.answered(vip6)
	r.kill(0)
	r.until(vip4, all[1:]...)
	r.until(vip6, all[1:]...)
	r.start(0)
	r.until(vip4, all...)

	f.kill()
	f.start()
	r.nodes[1].world.Services = nil // the kernel may still have the killed router's routes; only a new session can bring this change
	r.tell(1)
	r.until(vip4, "node-1", "node-3")
	r.until(vip6, "node-1", "node-3")
	r.answered(vip4)

	r.end(2)
	r.until(vip4, "node-1")
}

// TestFRRPassword: there is no session with a wrong password, and a session as soon as it is right.
func TestFRRPassword(t *testing.T) {
	needFRR(t)
	r := newRack(t, 1)
	newFRR(r, " neighbor nodes password right\n")
	w := &r.nodes[0].world
	w.Peers[0].Password = "wrong"
	r.start(0)
	await(t, r.nodes[0].log.String, "the router cannot be reached", "[a wrong password looks")
	r.until(vip4)
	w.Peers[0].Password = "right"
	r.tell(0)
	r.until(vip4, "node-1")
	r.until(vip6, "node-1")
	w.Peers[0].Password = "wrong"
	r.tell(0)
	r.until(vip4)
}

// TestFRRGracefulRestart: FRR keeps the routes of a speaker that ends, and of one that is killed, until the next
// speaker is there.
func TestFRRGracefulRestart(t *testing.T) {
	r, f, _ := startFRR(t, 1, "", func(_ int, w *world) { w.Peers[0].EnableGracefulRestart = true })
	changes := r.monitor()
	route := func() string {
		text := f.asking("bgpd", "show bgp ipv4 unicast 192.0.2.10/32")()
		if !strings.Contains(text, "(stale)") {
			text += "(fresh)"
		}
		return text
	}
	for _, stop := range []func(int){r.end, r.kill} {
		await(t, f.asking("bgpd", "show bgp neighbors 172.18.0.11"), "BGP state = Established")
		await(t, route, "1 available", "(fresh)")
		stop(0)
		await(t, route, "(stale)")
		r.answered(vip4)
		r.start(0)
		await(t, route, "1 available", "(fresh)")
	}
	r.goesOnce(changes)
}

// TestFRRBFD: FRR's bfdd drops the routes of a node whose speaker hangs, and its bgpd gets them back. Without BFD the
// test would end before a hold time does.
func TestFRRBFD(t *testing.T) {
	r, f, all := startFRR(t, 2, " neighbor nodes bfd 3 300 300\n neighbor nodes timers 80 240\n", func(_ int, w *world) {
		p := w.Peers[0]
		p.HoldTime, p.KeepaliveTime, p.BFDProfile = 240*time.Second, 80*time.Second, "fast"
		w.BFD = []*announce.BFDProfile{{Name: "fast", ReceiveInterval: 300 * time.Millisecond, TransmitInterval: 300 * time.Millisecond, DetectMultiplier: 3}}
	})
	up := func(want string) {
		t.Helper()
		await(t, func() string {
			for peer := range strings.SplitSeq(f.asking("bfdd", "show bfd peers")(), "\tpeer ") {
				if strings.HasPrefix(peer, r.nodes[1].Addr(true).String()+" ") {
					return peer
				}
			}
			return ""
		}, "Status: "+want)
	}
	up("up")
	must(t, r.nodes[1].cmd.Process.Signal(syscall.SIGSTOP))
	stopped := time.Now()
	r.until(vip4, all[0])
	t.Logf("a speaker that hangs: its route is gone after %v", time.Since(stopped).Round(time.Millisecond))
	r.until(vip6, all[0])
	must(t, r.nodes[1].cmd.Process.Signal(syscall.SIGCONT))
	r.until(vip4, all...)
	up("up")
}

// TestFRRDrain: FRR prefers other routes on request without any configuration, and no connection fails that a client
// begins while a node is drained.
func TestFRRDrain(t *testing.T) {
	r, _, all := startFRR(t, 2, "", nil)
	changes := r.monitor()
	connects := r.net.Outside.KeepAsking(netip.AddrPortFrom(vip4, 8080))
	for _, excluded := range []string{"it is drained", ""} {
		for _, m := range r.nodes {
			m.world.Nodes[1].Excluded = excluded
		}
		r.tell(0)
		r.tell(1)
		if excluded == "" {
			r.until(vip4, all...)
			continue
		}
		r.until(vip4, "node-1")
		if shunned := slices.Sorted(strings.Lines(r.nodes[1].log.String())); !slices.ContainsFunc(shunned, func(l string) bool { return strings.Contains(l, "withdrawn=0") }) {
			t.Error("the router was not asked to prefer others first")
		}
		await(t, r.nodes[1].log.String, "intended: map[]")
	}
	n, failed := connects()
	if t.Logf("%d connections; the router's changes:\n%s", n, changes); n == 0 || len(failed) > 0 {
		t.Errorf("of %d connections %d failed: %v", n, len(failed), failed)
	}
}

// TestFRRInterface: FRR and a node find each other behind an interface by router advertisements. The routes to
// addresses of both families lead to the node's link-local address, and go with the session.
func TestFRRInterface(t *testing.T) {
	needFRR(t)
	r := newRack(t, 1)
	f := newFRR(r, " neighbor br0 interface peer-group nodes\n")
	p := r.nodes[0].world.Peers[0]
	p.PeerAddress, p.Interface, p.DualStackAddressFamily = netip.Addr{}, "eth0", false
	r.start(0)
	in := func(family, to string) func() string {
		return func() string {
			var out []byte
			must(t, r.net.Fabric.Do(func() (err error) {
				out, err = exec.Command("ip", family, "route", "show", to).CombinedOutput()
				return err
			}))
			return string(out)
		}
	}
	await(t, in("-4", vip4.String()), "via inet6 fe80:")
	await(t, in("-6", vip6.String()), "via fe80:")
	r.answered(vip4)
	r.answered(vip6)
	if text := f.asking("bgpd", "show bgp neighbors br0")(); !strings.Contains(text, "BGP state = Established") {
		t.Error(text)
	}
	r.end(0)
	await(t, func() string {
		if routes := in("-4", vip4.String())() + in("-6", vip6.String())(); routes != "" {
			return routes
		}
		return "none"
	}, "none")
}
