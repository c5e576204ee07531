package bgp

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// end ends node i's speaker in order, and waits for its end.
func (r *rack) end(i int) {
	r.t.Helper()
	must(r.t, r.nodes[i].cmd.Process.Signal(syscall.SIGTERM))
	must(r.t, r.nodes[i].cmd.Wait())
}

// kill kills node i's speaker.
func (r *rack) kill(i int) {
	must(r.t, r.nodes[i].cmd.Process.Kill())
	_ = r.nodes[i].cmd.Wait()
}

// monitor records the changes of the router's routes.
func (r *rack) monitor() *testnet.Log {
	r.t.Helper()
	l := &testnet.Log{}
	cmd := exec.Command("ip", "-4", "monitor", "route")
	cmd.Stdout = l
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(r.t, r.net.Fabric.Do(cmd.Start))
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	await(r.t, func() string { // until monitor listens
		r.run(r.net.Fabric, "ip", "route", "add", "203.0.113.1/32", "dev", "lo")
		r.run(r.net.Fabric, "ip", "route", "del", "203.0.113.1/32", "dev", "lo")
		return l.String()
	}, "203.0.113.1")
	return l
}

// shunningPeer has BIRD's lines about nodes: BIRD logs the routes that nodes ask it not to use.
const shunningPeer = "ipv4 { import filter { if (65535,0) ~ bgp_community then { print \"shun \", net; bgp_local_pref = 0; } accept; }; export none; };"

// TestSession: a client behind a router reaches the addresses of both families through a node's routes. A clean end
// asks the router for other routes and withdraws the routes. The next start brings them back.
func TestSession(t *testing.T) {
	r := newRack(t, 1)
	r.router(shunningPeer, "")
	r.start(0)
	for range 2 {
		r.until(vip4, "node-1")
		r.until(vip6, "node-1")
		r.answered(vip4)
		r.answered(vip6)
		await(t, r.nodes[0].log.String, "intended: map[shop/web:{[router] [192.0.2.10 2001:db8:2::10]}]")
		r.end(0)
		await(t, r.birdLog.String, "shun 192.0.2.10/32")
		r.until(vip4)
		r.until(vip6)
		r.start(0)
	}
}

// startAll starts the speakers of n nodes, and waits until the router leads to all of them. neighbour has the
// router's lines about them.
func startAll(t *testing.T, n int, neighbour string) (r *rack, all []string) {
	t.Helper()
	r = newRack(t, n)
	r.router(neighbour, "")
	for i, m := range r.nodes {
		m.world.Peers[0].HoldTime, m.world.Peers[0].KeepaliveTime = 3*time.Second, time.Second
		r.start(i)
		all = append(all, m.Name)
	}
	r.until(vip4, all...)
	r.until(vip6, all...)
	return r, all
}

// TestKilled: three nodes share an address. The speaker of one is killed and started again.
func TestKilled(t *testing.T) {
	r, all := startAll(t, 3, "")
	for seen := map[string]bool{}; len(seen) < 3; {
		seen[r.answered(vip4)] = true
	}
	r.kill(0)
	r.until(vip4, "node-2", "node-3")
	r.start(0)
	r.until(vip4, all...)
}

// TestStopped: a speaker that hangs loses its session after the hold time, and gets it back.
func TestStopped(t *testing.T) {
	r, all := startAll(t, 2, "")
	must(t, r.nodes[1].cmd.Process.Signal(syscall.SIGSTOP))
	r.until(vip4, "node-1")
	must(t, r.nodes[1].cmd.Process.Signal(syscall.SIGCONT))
	r.until(vip4, all...)
}

// TestRouterKilled: the router is killed and comes back. Its old routes are still in its kernel, so a change shows
// that the sessions are new.
func TestRouterKilled(t *testing.T) {
	r, _ := startAll(t, 2, "")
	await(t, r.nodes[0].log.String, "session with router: up true for true: ")
	before := r.nodes[0].log.String()
	r.killBird()
	await(t, func() string { return r.nodes[0].log.String()[len(before):] }, "session with router: up false for true: ")
	r.startBird()
	r.nodes[1].world.Services = nil
	r.tell(1)
	r.until(vip4, "node-1")
	r.until(vip6, "node-1")
	r.answered(vip4)
}

// TestChanges: routes follow the API server and the node's proxy.
func TestChanges(t *testing.T) {
	r := newRack(t, 1)
	r.router("", "")
	w := &r.nodes[0].world
	w.Served = nil
	r.start(0)
	await(t, r.nodes[0].log.String, "session is up")
	r.until(vip4) // the kernel has no rules yet
	change := func(do func(), want ...string) {
		t.Helper()
		do()
		r.tell(0)
		r.until(vip4, want...)
	}
	change(func() { w.Served = []uint16{10256} }, "node-1")
	change(func() { w.Endpoints = nil })
	change(func() { w.Endpoints = map[string]announce.Endpoints{"web": {Any: true}} }, "node-1")
	change(func() { w.Services[0].Local, w.Services[0].HealthCheckNodePort = true, 31000 })
	change(func() { w.Endpoints["web"] = announce.Endpoints{Any: true, Ready: map[string]bool{"node-1": true}} })
	change(func() { w.Served = []uint16{31000} }, "node-1") // the proxy is being replaced, but has programmed the kernel once
	change(func() { w.Ads = nil })
	change(func() {
		w.Ads = []*announce.BGPAdvertisement{{Name: "b", AggregationLength: 32, AggregationLengthV6: 128}}
	}, "node-1")
	change(func() { w.Peers[0].ConnectTime = 3 * time.Second }, "node-1")
	change(func() { w.Peers = nil })
	await(t, r.nodes[0].log.String, "no session")
}

// TestReady: a speaker is ready when its router has its final routes. It is not ready before the proxies' answers
// that decide about them, nor before the session is up.
func TestReady(t *testing.T) {
	r := newRack(t, 1)
	m := r.nodes[0]
	says := func(want string) { t.Helper(); await(t, m.log.String, "ready: "+want) }
	m.world.Served, m.world.Services[0].Local, m.world.Services[0].HealthCheckNodePort = nil, true, 31000
	m.world.Endpoints["web"] = announce.Endpoints{Any: true, Ready: map[string]bool{"node-1": true}, Serving: map[string]bool{"node-1": true}}
	r.start(0)
	says("the node's proxy has not confirmed yet at port ")
	m.world.Served = []uint16{10256}
	r.tell(0)
	says("the node's proxy has not said yet at port 31000")
	m.world.Served = []uint16{10256, 31000}
	r.tell(0)
	says("the session with router is not up: ")
	r.router("", "")
	says("<nil>")
	r.until(vip4, "node-1")
	log := m.log.String()
	if up := strings.Index(log, "session is up"); up < 0 || strings.Index(log, "ready: <nil>") < up {
		t.Error("ready before the session was up")
	}
}

// TestPassword: there is no session with a wrong password, and a session as soon as it is right.
func TestPassword(t *testing.T) {
	r := newRack(t, 1)
	r.router(`password "right";`, "")
	w := &r.nodes[0].world
	w.Peers[0].PasswordSecret = "bgp"
	r.start(0)
	await(t, r.nodes[0].log.String, "Secret bgp of type kubernetes.io/basic-auth")
	w.Passwords = map[string]string{"bgp": "wrong"}
	r.tell(0)
	await(t, r.nodes[0].log.String, "the router cannot be reached", "[a wrong password looks")
	await(t, r.nodes[0].log.String, "session with router: up false for true: ")
	w.Passwords["bgp"] = "right"
	r.tell(0)
	r.until(vip4, "node-1")
	if log := r.nodes[0].log.String(); strings.Contains(log, "wrong\"") || strings.Contains(log, "right") {
		t.Error("a password is in the log")
	}
}

// TestAttributes: a router of the node's own AS gets the right attributes, over IPv6 from an address that the node
// chooses.
func TestAttributes(t *testing.T) {
	r := newRack(t, 1)
	r.router("local fd00:172:18::1 as 64501;", "")
	w := &r.nodes[0].world
	p := w.Peers[0]
	p.PeerASN, p.PeerAddress, p.SourceAddress = 64501, netip.MustParseAddr("fd00:172:18::1"), r.nodes[0].Addrs[1]
	p.RouterID = netip.MustParseAddr("10.9.8.7")
	w.Communities = []*announce.Community{{Name: "c", Aliases: []announce.CommunityAlias{{Name: "tenant", Value: "large:7:8:9"}}}}
	w.Ads[0].LocalPref, w.Ads[0].Communities, w.Ads[0].AggregationLength = 250, []string{"64501:42", "tenant"}, 28
	r.start(0)
	await(t, func() string { return r.ask("show", "route", "all") },
		"192.0.2.0/28", "2001:db8:2::10/128", "BGP.local_pref: 250", "(64501,42)", "(7, 8, 9)", "BGP.next_hop: 172.18.0.11", "BGP.next_hop: fd00:172:18::11")
	await(t, func() string { return r.ask("show", "protocols", "all", "node1") }, "Neighbor ID:      10.9.8.7")
	r.answered(vip4)
}

// TestReceived: routes from a router change nothing, and too many of them end the session.
func TestReceived(t *testing.T) {
	r := newRack(t, 1)
	var flood strings.Builder
	for i := range maxReceived + 1 {
		fmt.Fprintf(&flood, "route 10.%d.%d.0/24 blackhole;\n", i>>8, i&0xff)
	}
	r.router("ipv4 { import all; export where source = RTS_STATIC; };",
		"protocol static few { ipv4; route 192.0.2.10/32 blackhole; route 198.18.0.0/15 blackhole; }\nprotocol static many { disabled; ipv4; "+flood.String()+"}")
	r.start(0)
	await(t, func() string { return r.ask("show", "route", "192.0.2.10/32", "all") }, "[node1", "[few")
	await(t, func() string { return r.ask("show", "protocols", "all", "node1") }, "2 exported")
	await(t, r.nodes[0].log.String, "2 received, 1 in the table")
	r.ask("enable", "many")
	await(t, r.nodes[0].log.String, fmt.Sprintf("the router sent more than %d prefixes", maxReceived))
}

// TestGracefulRestart: the router keeps the routes of a speaker that ends, and of one that is killed, until the next
// speaker is there.
func TestGracefulRestart(t *testing.T) {
	r := newRack(t, 1)
	r.router("", "")
	r.nodes[0].world.Peers[0].EnableGracefulRestart = true
	r.start(0)
	r.until(vip4, "node-1")
	r.until(vip6, "node-1")
	changes := r.monitor()
	session := func() string { return r.ask("show", "protocols", "all", "node1") }
	// A router drops the routes if the session is lost again before it has received all of them.
	recovered := func() string {
		if text := session(); !strings.Contains(text, "graceful restart active") {
			return text
		}
		return "not yet"
	}
	for _, stop := range []func(int){r.end, r.kill} {
		await(t, recovered, "Established")
		stop(0)
		await(t, session, "Neighbor graceful restart active")
		r.answered(vip4)
		r.start(0)
		await(t, recovered, "Established")
	}
	r.goesOnce(changes)
}

// goesOnce deletes the Service, and fails unless its route goes then, and never went before.
func (r *rack) goesOnce(changes fmt.Stringer) {
	r.t.Helper()
	r.nodes[0].world.Services = nil
	r.tell(0)
	r.until(vip4)
	deleted := "Deleted " + vip4.String()
	await(r.t, changes.String, deleted)
	if gone := strings.Count(changes.String(), deleted); gone != 1 {
		r.t.Errorf("the route to %v was taken away %d times, want once, at the end:\n%s", vip4, gone, changes)
	}
}

// TestDrain: a drained node asks its router to prefer another node before it withdraws its routes, and no connection
// fails that a client begins meanwhile.
func TestDrain(t *testing.T) {
	r, all := startAll(t, 2, shunningPeer)
	connects := r.net.Outside.KeepAsking(netip.AddrPortFrom(vip4, 8080))
	for range 2 {
		for _, excluded := range []string{"it is drained", ""} {
			for _, m := range r.nodes {
				m.world.Nodes[1].Excluded = excluded
			}
			before := strings.Count(r.birdLog.String(), "shun 192.0.2.10/32")
			r.tell(0)
			r.tell(1)
			if excluded == "" {
				r.until(vip4, all...)
				continue
			}
			r.until(vip4, "node-1")
			r.until(vip6, "node-1")
			if after := strings.Count(r.birdLog.String(), "shun 192.0.2.10/32"); after <= before {
				t.Error("the router was not asked to prefer others first")
			}
			await(t, r.nodes[1].log.String, "intended: map[]")
		}
	}
	n, failed := connects()
	if t.Logf("%d connections", n); n == 0 || len(failed) > 0 {
		t.Errorf("of %d connections %d failed: %v", n, len(failed), failed)
	}
}

// TestVRF: a session is bound to the device that vrf names. The tests' kernel has no VRFs, but a session in a VRF
// uses the same socket option.
func TestVRF(t *testing.T) {
	r := newRack(t, 1)
	r.router("", "")
	w := &r.nodes[0].world
	w.Peers[0].VRF = "red"
	r.start(0)
	await(t, r.nodes[0].log.String, "reason=\"vrf: red: ", "session=false")
	w.Peers[0].VRF = "lo" // no path from there to the router
	r.tell(0)
	await(t, r.nodes[0].log.String, "session restarts", "the router cannot be reached")
	r.until(vip4)
	w.Peers[0].VRF = "eth0"
	r.tell(0)
	r.until(vip4, "node-1")
	r.until(vip6, "node-1")
	r.answered(vip4)
}
