//go:build uml

package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/podnetwork/node/tunnel"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// agree syncs until all nodes have all keys.
func (c *cluster) agree() {
	c.t.Helper()
	c.sync()
	c.sync()
}

// watch counts packets with pods' addresses that nobody has encrypted, as they come to each node.
func (c *cluster) watch() {
	for _, m := range c.machines {
		m.run(`nft 'table inet watch { chain seen { type filter hook prerouting priority -400
			iifname "eth0" ip saddr 10.244.0.0/16 counter
			iifname "eth0" ip6 saddr fd00:10:244::/48 counter
		}; }'`)
	}
}

func (c *cluster) wantNonePlain() {
	c.t.Helper()
	for _, m := range c.machines {
		if out := m.run("nft list table inet watch"); strings.Count(out, "counter packets 0 ") != 2 {
			c.t.Errorf("packets of pods came unencrypted to %s:\n%s", m.peer.Name, out)
		}
	}
}

// TestWireGuardCarries: pods reach each other encrypted, whatever family is below and inside.
func TestWireGuardCarries(t *testing.T) {
	for _, test := range []struct {
		name     string
		underlay func(string) bool
		cidrs    func(int) []string
		mtu      int
	}{
		{"IPv4", any4, v4, 1390},
		{"IPv6", any6, v6, 1370},
		{"dual stack", anyFamily, dual, 1390},
		{"dual stack over IPv6", any6, dual, 1370},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newRouted(t, plan.WayWireGuard, test.underlay, test.cidrs)
			c.watch()
			c.agree()
			c.wantCarried(test.mtu)
			c.wantNonePlain()
		})
	}
}

// TestWireGuardChangesLive: no packet between pods is lost while one node after the other changes
// between encryption and the other ways.
func TestWireGuardChangesLive(t *testing.T) {
	c := newRouted(t, plan.WayRoutes, anyFamily, dual)
	c.sync()
	everybody := c.converse()
	everybody("at first")
	start := time.Now()
	later := time.Duration(0)
	for _, way := range []plan.Way{plan.WayWireGuard, plan.WayVXLAN, plan.WayWireGuard, plan.WayAuto, plan.WayWireGuard, plan.WayRoutes} {
		for _, m := range c.machines {
			c.change(m, way, func() time.Time { return start.Add(later) }, everybody)
			later += 50 * time.Second // the last one is almost two minutes late
			c.sync()
			everybody(fmt.Sprintf("on the way to %s", way))
		}
		for range 5 { // longer than all times of transition, in any order of the nodes
			later += 80 * time.Second
			for _, m := range c.machines {
				m.mustSync(c.peers())
				everybody(fmt.Sprintf("when %s settles with %s", m.peer.Name, way))
			}
		}
		later += 2 * transition
		for range 2 {
			c.sync()
		}
		everybody("after all with " + string(way))
		c.wantWay(way)
	}
}

// TestWireGuardChangesByRouters: nor while nodes in two subnets change between encryption and routers that carry the pods'
// packets: those in the same subnet and those in the other.
func TestWireGuardChangesByRouters(t *testing.T) {
	c := newCarried(t, plan.WayBGP)
	c.sync()
	c.carry()
	c.sync()
	a, near, far := c.machines[0].newPod(), c.machines[1].newPod(), c.machines[2].newPod()
	var talks []*talk
	for _, to := range []*pod{near, far} {
		to.echo()
		for i, addr := range to.addrs {
			talks = append(talks, newTalk(fmt.Sprintf("%s IPv%d", addr, 4+2*i), a, addr))
		}
	}
	everybody := func(when string) {
		t.Helper()
		for _, k := range talks {
			k.goOn(when)
		}
	}
	everybody("at first")
	start := time.Now()
	later := time.Duration(0)
	all := func(when string) { // each node in turn, and then the routers hear of it
		t.Helper()
		for _, m := range c.machines {
			m.mustSync(c.peers())
			everybody(fmt.Sprintf("when %s %s", m.peer.Name, when))
		}
		c.carry()
	}
	for _, way := range []plan.Way{plan.WayWireGuard, plan.WayBGP} {
		for _, m := range c.machines {
			c.change(m, way, func() time.Time { return start.Add(later) }, everybody)
			c.carry()
			later += 50 * time.Second // the last one is almost two minutes late
			all("is on the way to " + string(way))
		}
		for range 5 { // longer than all times of transition, in any order of the nodes
			later += 80 * time.Second
			all("settles with " + string(way))
		}
		later += 2 * transition
		all("has settled with " + string(way))
		all("stays with " + string(way))
		c.wantWay(way)
		routes, encrypted := c.machines[0].routes(), way == plan.WayWireGuard
		if strings.Contains(routes, "10.244.3.0/24 via 10.244.3.0 dev fairway-wg") != encrypted ||
			strings.Contains(routes, "10.244.3.0/24 via 192.0.2.254 dev eth0") == encrypted {
			t.Errorf("%s: the routes to another subnet are:\n%s", way, routes)
		}
		if own, err := c.machines[0].config.RIB.PodCIDRs(); err != nil || (len(own) > 0) == encrypted {
			t.Errorf("%s: to announce are %v, %v", way, own, err)
		}
		if encrypted {
			c.watch()
			everybody("encrypted")
			c.wantNonePlain()
		}
	}
}

// wantWay fails unless all has changed, and nothing is left of the way before.
func (c *cluster) wantWay(way plan.Way) {
	c.t.Helper()
	m := c.machines[0]
	links, routes := m.run("ip link"), m.routes()
	if got := strings.Contains(routes, "10.244.2.0/24 via 10.244.2.0 dev fairway-wg"); got != (way == plan.WayWireGuard) {
		c.t.Errorf("%s: the routes to a neighbour are:\n%s", way, routes)
	}
	if got := strings.Contains(links, "fairway-vxlan"); got != (way == plan.WayVXLAN || way == plan.WayAuto) {
		c.t.Errorf("%s: the VXLAN device is there: %t", way, got)
	}
	if got := strings.Contains(links, "fairway-wg"); got != (way == plan.WayWireGuard) {
		c.t.Errorf("%s: the WireGuard device is there: %t", way, got)
	}
	if got := m.peer.Key != (plan.Key{}); got != (way == plan.WayWireGuard) {
		c.t.Errorf("%s: the key is published: %t", way, got)
	}
	set := m.run("nft list set inet fairway-pods encrypted4")
	if got := strings.Contains(set, "10.244.2.0/"); got != (way == plan.WayWireGuard) {
		c.t.Errorf("%s: what has to be encrypted is:\n%s", way, set)
	}
}

// wgState is all that the kernel holds of WireGuard, without what changes by itself.
func (m *machine) wgState() string {
	m.t.Helper()
	if !strings.Contains(m.run("ip link"), "fairway-wg") {
		return ""
	}
	text := m.run("ip -d link show fairway-wg | sed 's/^[0-9]*: //'; ip -o addr show dev fairway-wg | awk '{print $3, $4}'") + m.routes()
	m.wg(func(conn *tunnel.Conn, link int) error {
		d, err := conn.Device(m.t.Context(), link)
		if err != nil {
			return err
		}
		var peers []string
		for key, p := range d.Peers {
			peers = append(peers, fmt.Sprint(key, p))
		}
		slices.Sort(peers)
		text += fmt.Sprintf("%s %d\n%s", d.Public, d.Port, strings.Join(peers, "\n"))
		return nil
	})
	return text
}

// wg reads or changes the device by netlink, as the program wg would.
func (m *machine) wg(change func(*tunnel.Conn, int) error) {
	m.t.Helper()
	err := m.do(func() error {
		conn, err := tunnel.Open(m.t.Context())
		if err != nil {
			return err
		}
		defer conn.Close()
		link, err := net.InterfaceByName(tunnel.WireGuardLink)
		if err != nil {
			return err
		}
		return change(conn, link.Index)
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// TestWireGuardRepairs: what another program does is undone, with the same key.
func TestWireGuardRepairs(t *testing.T) {
	c := newRouted(t, plan.WayWireGuard, anyFamily, dual)
	c.agree()
	m, far := c.machines[0], c.machines[2]
	want := m.wgState()
	set := func(changes ...tunnel.Change) func() {
		return func() {
			m.wg(func(conn *tunnel.Conn, link int) error { return conn.SetPeers(t.Context(), link, changes) })
		}
	}
	run := func(line string) func() { return func() { m.run(line) } }
	for name, damage := range map[string]func(){
		"device deleted":           run("ip link del fairway-wg"),
		"device down":              run("ip link set fairway-wg down"),
		"another MTU":              run("ip link set fairway-wg mtu 1300"),
		"no addresses":             run("ip addr flush dev fairway-wg"),
		"another address":          run("ip addr add 10.9.9.9/24 dev fairway-wg"),
		"a route gone":             run("ip route del 10.244.3.0/24 proto 70"),
		"another route":            run("ip -6 route replace fd00:10:244:3::/64 via 2001:db8::fe proto 70"),
		"another device, no peers": run("ip link del fairway-wg; ip link add fairway-wg type wireguard"),
		"a peer gone":              set(tunnel.Change{Key: far.peer.Key, Remove: true}),
		"another endpoint":         set(tunnel.Change{Key: far.peer.Key, Peer: plan.WireGuardPeer{Endpoint: netip.MustParseAddrPort("192.0.2.77:10282"), Allowed: far.peer.PodCIDRs}}),
		"addresses too many":       set(tunnel.Change{Key: far.peer.Key, Peer: plan.WireGuardPeer{Endpoint: netip.AddrPortFrom(far.peer.Addrs[0], 10282), Allowed: prefixes("10.0.0.0/8")}}),
		"a stranger":               set(tunnel.Change{Key: plan.Key{0: 7, 31: 1}, Peer: plan.WireGuardPeer{Endpoint: netip.MustParseAddrPort("192.0.2.77:10282"), Allowed: prefixes("10.244.3.0/24")}}),
		"another port": func() {
			m.wg(func(conn *tunnel.Conn, link int) error {
				d, err := conn.Device(t.Context(), link)
				if err != nil {
					return err
				}
				return conn.SetDevice(t.Context(), link, d.Private, 51820)
			})
		},
	} {
		damage()
		if m.wgState() == want {
			t.Fatalf("%s: no damage", name)
		}
		m.mustSync(c.peers())
		if got := m.wgState(); got != want {
			t.Errorf("%s, after Sync:\n%s\nwant:\n%s", name, got, want)
		}
	}
	m.restart()
	m.mustSync(c.peers())
	if got := m.wgState(); got != want {
		t.Errorf("after a restart:\n%s\nwant:\n%s", got, want)
	}
	if err := m.do(func() error { return m.network.Cleanup(t.Context()) }); err != nil || m.wgState() != "" {
		t.Errorf("after Cleanup, %v:\n%s", err, m.wgState())
	}
}

// TestWireGuardNewKey: a node that lost its key makes another, and connections live on. Nothing is left
// of a node that has gone.
func TestWireGuardNewKey(t *testing.T) {
	c := newRouted(t, plan.WayWireGuard, any4, v4)
	c.agree()
	a, b := c.machines[0].newPod(), c.machines[2].newPod()
	b.echo()
	k := newTalk("IPv4", a, b.addrs[0])
	k.goOn("at first")
	before := c.machines[2].peer.Key
	c.machines[2].run("ip link del fairway-wg")
	c.machines[2].restart()
	c.agree()
	if now := c.machines[2].peer.Key; now == before || now == (plan.Key{}) {
		t.Errorf("the key is still %s", now)
	}
	k.goOn("with another key")
	m := c.machines[0]
	c.machines = c.machines[:2]
	c.sync()
	k.goOn("when its object has just gone")
	m.network.now = func() time.Time { return time.Now().Add(plan.KeepDeparted) }
	m.mustSync(c.peers())
	if out := m.wgState(); strings.Contains(out, "10.244.3.0") || strings.Contains(out, "192.0.3.3") {
		t.Errorf("of the node that has gone is left:\n%s", out)
	}
}

// TestWireGuardRefuses: nothing goes to a node without a key, or leaves while the device is away, and
// what comes unencrypted is dropped, whoever's address it has.
func TestWireGuardRefuses(t *testing.T) {
	c := newRouted(t, plan.WayWireGuard, any4, v4)
	c.watch()
	c.agree()
	near, far := c.machines[0], c.machines[1]
	a, b := near.newPod(), far.newPod()
	reach([]*pod{a, b})
	dial := func() error {
		return a.do(func() error {
			conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(b.addrs[0], 8080).String(), 3*time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		})
	}
	peers := c.peers()
	peers[1].Key = plan.Key{}
	near.mustSync(peers) // its former key counts for a minute, as that of a node that has gone
	near.network.now = func() time.Time { return time.Now().Add(plan.KeepDeparted) }
	near.mustSync(peers)
	if err := dial(); !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("to a node without a key: %v, want unreachable", err)
	}
	near.mustSync(c.peers())
	reach([]*pod{a, b})
	near.run("ip link del fairway-wg; ip route add 10.244.2.0/24 via 192.0.2.2")
	if err := dial(); err == nil {
		t.Error("a connection without a device")
	}
	if near.counted("encrypted-postrouting") == 0 {
		t.Error("nothing was dropped on its way out")
	}
	c.wantNonePlain()
	near.run("ip route del 10.244.2.0/24 via 192.0.2.2; nft delete table inet fairway-pods") // a forger in the nodes' network
	near.run("ip route add 10.244.2.0/24 via 192.0.2.2")
	if err := dial(); err == nil {
		t.Error("an unencrypted connection")
	}
	if far.counted("encrypted-prerouting") == 0 {
		t.Error("nothing was dropped that came unencrypted")
	}
	near.run("ip route del 10.244.2.0/24 via 192.0.2.2")
	near.mustSync(c.peers())
	reach([]*pod{a, b})
	// A node sends with another's address, by its own key.
	near.run("ip addr add 10.244.3.77/32 dev lo; ip route add 10.244.2.128/25 dev fairway-wg src 10.244.3.77; ip rule add to 10.244.2.0/24 lookup main")
	err := near.do(func() error {
		d := net.Dialer{Timeout: 3 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP("10.244.3.77")}}
		conn, err := d.Dial("tcp", netip.AddrPortFrom(b.addrs[0], 8080).String())
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err == nil {
		t.Error("a node connected with another node's pod's address")
	}
}
