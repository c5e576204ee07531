package conformance

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// affinityTable returns a table of two Services: one with affinity, at a ClusterIP and a NodePort, and one without.
// which selects the endpoints.
func affinityTable(lasts time.Duration, which ...int) *service.Table {
	at := func(addr string, name string, p api.Proto, lasts time.Duration) *service.Frontend {
		f := web(name, addr, p, which...)
		f.Affinity = lasts
		return f
	}
	t := tableOf(
		at("10.96.0.1:80", "web", api.TCP, lasts), at("0.0.0.0:30080", "web", api.TCP, lasts),
		at("10.96.0.2:80", "dns", api.UDP, lasts), at("10.96.0.3:80", "plain", api.TCP, 0),
	)
	t.Settings.NodePorts = []netip.Prefix{netip.MustParsePrefix("172.18.0.11/32")}
	return t
}

// affinity: each client stays at its endpoint, by both frontends, over a change of other endpoints and a restart. It
// moves when its endpoint leaves or its time is over.
func (s suite) affinity(t testing.TB) {
	r := sixRig(t, s)
	w := &scenario.World
	clients := []*testnet.Host{r.hosts[w.Pod.V4], r.hosts[w.Peer.V4], r.hosts[w.Outside.V4], r.node}
	whole := affinityTable(3*time.Hour, 0, 1, 2, 3, 4, 5)
	report(t, r.sync(whole))
	if err := r.checkSynced(whole); err != nil {
		t.Fatal(err)
	}
	home := map[*testnet.Host]netip.AddrPort{}
	for _, c := range clients {
		home[c] = r.awaitAffinity(t, c, "tcp", "10.96.0.1:80", "172.18.0.11:30080")
		r.awaitAffinity(t, c, "udp", "10.96.0.2:80")
	}

	report(t, r.restart(whole))
	for _, c := range clients {
		if now := r.awaitAffinity(t, c, "tcp", "172.18.0.11:30080", "10.96.0.1:80"); now != home[c] {
			t.Errorf("%s moved from %v to %v over a restart", c.Name, home[c], now)
		}
	}

	// The first client's endpoint leaves: this client moves, and all others stay.
	var left []int
	for i, e := range six() {
		if e.Addr != home[clients[0]] {
			left = append(left, i)
		}
	}
	fewer := affinityTable(3*time.Hour, left...)
	report(t, r.sync(fewer))
	report(t, r.checkSynced(fewer))
	for _, c := range clients {
		now := r.awaitAffinity(t, c, "tcp", "10.96.0.1:80")
		if was := home[c]; (now == was) == (was == home[clients[0]]) {
			t.Errorf("%s is at %v, was at %v; %v has left", c.Name, now, was, home[clients[0]])
		}
	}
	report(t, r.forget())
	if s.unsupported["expiry"] == "" {
		r.expires(t, clients[2], left)
	}
	report(t, r.sync(tableOf()))
	report(t, r.checkSynced(tableOf()))
}

// affinityLocal: the frontends of a Service port share the clients' endpoints. But a frontend of policy Local never
// sends a client to another node, also when only the policy changed.
func (s suite) affinityLocal(t testing.TB) {
	r := sixRig(t, s)
	w := &scenario.World
	clients := []*testnet.Host{r.hosts[w.Pod.V4], r.hosts[w.Peer.V4], r.hosts[w.Outside.V4], r.node}
	const clusterIP, nodePort = "10.96.0.1:80", "172.18.0.11:30080"
	table := func(local bool, atNodePort ...int) *service.Table {
		one := func(addr string, which ...int) *service.Frontend {
			f := web("web", addr, api.TCP, which...)
			f.Affinity = 3 * time.Hour
			return f
		}
		cluster := one(clusterIP, 0)
		cluster.Internal.Local = local
		t := tableOf(cluster, one("0.0.0.0:30080", atNodePort...))
		t.Settings.NodePorts = []netip.Prefix{netip.MustParsePrefix("172.18.0.11/32")}
		return t
	}
	for _, step := range []*service.Table{table(false, 0), table(true, 0), table(true, 1, 3, 5)} {
		report(t, r.sync(step))
		report(t, r.checkSynced(step))
	}
	for _, c := range clients {
		home := r.awaitAffinity(t, c, "tcp", nodePort)
		if at := r.awaitAffinity(t, c, "tcp", clusterIP); at != six()[0].Addr {
			t.Errorf("%s is answered by %v at the ClusterIP of policy Local, want %v", c.Name, at, six()[0].Addr)
		}
		if at := r.awaitAffinity(t, c, "tcp", nodePort); at != home {
			t.Errorf("%s moved from %v to %v at the NodePort", c.Name, home, at)
		}
	}
	report(t, r.restart(table(true, 1, 3, 5)))
}

// awaitAffinity sends requests until a client has got one endpoint often enough, and returns the endpoint.
func (r *rig) awaitAffinity(t testing.TB, c *testnet.Host, network string, to ...string) netip.AddrPort {
	t.Helper()
	var home netip.AddrPort
	for i := range 8 {
		at := netip.MustParseAddrPort(to[i%len(to)])
		got := c.Ask(network, at, r.suite.patience)
		switch {
		case got.Outcome != testnet.Answered:
			t.Errorf("%s to %v/%s: %v", c.Name, at, network, got)
			return home
		case !home.IsValid():
			home = got.At
		case got.At != home:
			t.Errorf("%s to %v/%s: answered by %v, before by %v", c.Name, at, network, got.At, home)
			return home
		}
	}
	return home
}

// expires sends requests at intervals longer than the affinity, until another endpoint answers.
func (r *rig) expires(t testing.TB, c *testnet.Host, which []int) {
	t.Helper()
	const lasts = time.Second
	report(t, r.sync(affinityTable(lasts, which...)))
	at := netip.MustParseAddrPort("10.96.0.1:80")
	// The client's entry was made for three hours. A new connection shortens it to a second.
	seen := map[string]bool{}
	for range 12 {
		got := c.Ask("tcp", at, r.suite.patience)
		if seen[fmt.Sprint(got.At)] = true; len(seen) > 1 {
			return
		}
		<-time.After(lasts + 300*time.Millisecond)
	}
	t.Errorf("%s never moved although its affinity lasts %v: %v", c.Name, lasts, seen)
}
