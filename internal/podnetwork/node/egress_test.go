package node

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// egressPods is an Egress that the test changes.
type egressPods map[netip.Addr]plan.EgressPod

func (e egressPods) Dirty() <-chan struct{}                                { return nil }
func (e egressPods) Pods() (all map[netip.Addr]plan.EgressPod, known bool) { return e, e != nil }

var egress4, egress6 = netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("2001:db8::200")

// egressOf is the egress address of a family.
func egressOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return egress4
	}
	return egress6
}

// leaveBy gives pods of machines the egress addresses, which gateway announces to outside; nil: nobody does.
func (c *cluster) leaveBy(gateway *machine, pods map[*pod]*machine) {
	c.t.Helper()
	all := egressPods{}
	for p, m := range pods {
		for _, a := range p.addrs {
			e := plan.EgressPod{Node: m.peer.Name, Addr: egressOf(a)}
			if gateway != nil {
				e.Gateway = gateway.peer.Name
			}
			all[a] = e
		}
	}
	for _, m := range c.machines {
		m.config.Egress = all
		m.network.Egress = all
	}
	c.sync()
	if gateway != nil {
		mac := strings.Fields(gateway.run("ip -br link show eth0"))[2]
		for _, a := range []netip.Addr{egress4, egress6} {
			c.outside.run(fmt.Sprintf("ip neigh replace %s lladdr %s dev eth0", a, mac))
		}
	}
}

// egressState is what the kernel holds for egress addresses, elements left out.
func (m *machine) egressState() string {
	return m.run(fmt.Sprintf("nft list tables | grep -c fairway-egress || true; for f in -4 -6; do ip $f rule show pref %d; ip $f route show table all | grep -E 'table (10[789][0-9]|1100)' || true; done", numbers.RulePriorityEgress))
}

// TestEgress: pods of three nodes leave with an address that the second one announces, then the third, then
// nobody; in the cluster they keep their own.
func TestEgress(t *testing.T) {
	c := newCluster(t, 3, dual)
	c.outside.serve()
	c.sync()
	pods := map[*pod]*machine{}
	var all []*pod
	for _, m := range c.machines {
		p := m.newPod()
		pods[p] = m
		all = append(all, p)
	}
	plain := c.machines[0].newPod()
	servers := []netip.Addr{outside4, outside6}
	leaves := func(when string) {
		t.Helper()
		for i, p := range all {
			for k, server := range servers {
				p.wantSource(fmt.Sprintf("%s, pod %d", when, i), server, egressOf(p.addrs[k]))
			}
		}
		for k, server := range servers {
			plain.wantSource(when+", a pod without an egress address", server, c.machines[0].peer.Addrs[k])
		}
		reach(append(slices.Clone(all), plain))
	}
	c.leaveBy(c.machines[1], pods)
	leaves("by node 2")
	generations := []uint32{}
	for _, m := range c.machines {
		generations = append(generations, m.generation())
	}
	for _, m := range c.machines {
		known := m.config.Egress
		for _, is := range []egressPods{nil, known.(egressPods)} { // not known yet, then as before
			m.config.Egress = is
			m.restart()
			m.mustSync(c.peers())
		}
	}
	for i, m := range c.machines {
		if now := m.generation(); now != generations[i] {
			t.Errorf("node %d: an agent that starts anew changed tables: %d, now %d", i+1, generations[i], now)
		}
	}

	c.fabric.run("ip link set node-2 down")
	all, pods = []*pod{all[0], all[2]}, map[*pod]*machine{all[0]: c.machines[0], all[2]: c.machines[2]}
	c.leaveBy(c.machines[2], pods)
	leaves("by node 3")

	c.leaveBy(nil, pods)
	for i, p := range all {
		for _, server := range servers {
			if err := p.do(func() error { return refused(server) }); err != nil {
				t.Errorf("nobody announces the address, pod %d: %v", i, err)
			}
		}
	}
	reach(append(slices.Clone(all), plain))

	c.leaveBy(nil, nil)
	for i, p := range all {
		for k, server := range servers {
			p.wantSource("without egress addresses", server, pods[p].peer.Addrs[k])
		}
		if left := c.machines[2*i].egressState(); strings.TrimSpace(left) != "0" {
			t.Errorf("node %d: still there:\n%s", 2*i+1, left)
		}
	}
}

// TestEgressBrake: an agent that starts next to an API server without pods or Services keeps the rules of the agent before
// for EmptyAfter. A few pods that are gone do not hold it back.
func TestEgressBrake(t *testing.T) {
	c := newCluster(t, 1, dual)
	m := c.machines[0]
	start := time.Now()
	m.config.EmptyAfter = time.Minute
	restart := func(pods egressPods) {
		m.config.Egress = pods
		m.restart()
		m.network.now = func() time.Time { return start }
		m.mustSync(c.peers())
	}
	marks := func(when string, want int) {
		t.Helper()
		out := m.run("nft list map inet fairway-egress marks4 2>/dev/null || true")
		n := 0
		for i := range 20 {
			if strings.Contains(out, fmt.Sprintf("10.244.1.%d :", 100+i)) {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: %d pods have rules, want %d:\n%s", when, n, want, out)
		}
	}
	all := egressPods{}
	for i := range 20 {
		all[netip.AddrFrom4([4]byte{10, 244, 1, byte(100 + i)})] = plan.EgressPod{Node: m.peer.Name, Addr: egress4, Gateway: m.peer.Name}
	}
	restart(all)
	marks("at first", 20)
	restart(egressPods{})
	marks("an empty API server", 20)
	if !slices.ContainsFunc(m.network.Plan().Problems, func(p plan.Problem) bool { return p.Reason == plan.ReasonEgressKept }) {
		t.Errorf("no problem says so: %v", m.network.Plan().Problems)
	}
	few := maps.Clone(all)
	delete(few, netip.MustParseAddr("10.244.1.100"))
	restart(few)
	marks("one pod is gone", 19)
	restart(egressPods{})
	m.network.now = func() time.Time { return start.Add(time.Minute) }
	m.mustSync(c.peers())
	marks("empty for a minute", 0)
}

// refused connects ten times, and wants each connection to be refused before the client repeats its SYN. The kernel
// sends only the first ICMP errors at once.
func refused(server netip.Addr) error {
	for i := range 10 {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(server, 8080).String(), 700*time.Millisecond)
		if err == nil {
			conn.Close()
			return fmt.Errorf("%v answers", server)
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("connection %d to %v: %w", i, server, err)
		}
	}
	return nil
}

// TestEgressThroughTunnel: a pod behind a router leaves by a node in another subnet, through the tunnel, and
// by no other way of reaching pods does it.
func TestEgressThroughTunnel(t *testing.T) {
	c := newRouted(t, plan.WayAuto, anyFamily, dual)
	c.outside = newNamespace(t)
	c.plug(c.outside, "br0", "out", "192.0.2.99/24", "2001:db8:0::99/64")
	c.outside.serve()
	c.sync()
	near, far := c.machines[0], c.machines[2]
	p := far.newPod()
	c.leaveBy(near, map[*pod]*machine{p: far})
	for k, server := range []netip.Addr{outside4, outside6} {
		p.wantSource("through the tunnel", server, egressOf(p.addrs[k]))
	}
	// What is no answer does not come in by the way that answers have.
	near.send(netip.AddrPortFrom(far.peer.Addrs[0], numbers.PortVXLAN), vxlanPacket(numbers.VNI, "node-3", netip.MustParseAddr("203.0.113.1"), p.addrs[0]))
	eventually(t, "what is no answer is dropped", func() bool {
		return strings.Contains(far.run("nft list chain inet fairway-egress prerouting"), "packets 1 ")
	})

}

// TestEgressByRouters: where routers carry pods' packets, a pod leaves by a node in another subnet too, through a tunnel that
// carries nothing else.
func TestEgressByRouters(t *testing.T) {
	c := newCarried(t, plan.WayBGP)
	c.outside = newNamespace(t)
	c.plug(c.outside, "br0", "out", "192.0.2.99/24", "2001:db8:0::99/64")
	c.outside.serve()
	c.sync()
	c.carry()
	c.sync()
	near, far := c.machines[0], c.machines[2]
	p, q := far.newPod(), near.newPod()
	c.leaveBy(near, map[*pod]*machine{p: far})
	for k, server := range []netip.Addr{outside4, outside6} {
		p.wantSource("through the tunnel", server, egressOf(p.addrs[k]))
		q.wantSource("a pod without an egress address", server, near.peer.Addrs[k])
	}
	reach([]*pod{p, q})
	if out := far.routes(); !strings.Contains(out, "10.244.1.0/24 via 192.0.3.254 dev eth0") || strings.Contains(out, "dev fairway-vxlan") {
		t.Errorf("the routes to pods are:\n%s", out)
	}
	if out := p.run("ip link show eth0"); !strings.Contains(out, "mtu 1450") {
		t.Errorf("pods' MTU is not that of the uplink:\n%s", out)
	}
	// Without the tunnel pods go on, and those that would leave by it are refused.
	far.run("ip link del fairway-vxlan; ip link add fairway-vxlan type bridge")
	if err := far.sync(c.peers()); err == nil {
		t.Error("no error without a tunnel")
	}
	if err := p.do(func() error { return refused(outside4) }); err != nil {
		t.Error(err)
	}
	reach([]*pod{p, q, far.newPod()})
	far.run("ip link del fairway-vxlan")
	far.mustSync(c.peers())
	p.wantSource("through a new tunnel", outside4, egress4)
	later := time.Duration(0)
	for _, m := range c.machines {
		m.config.Egress = nil
		m.restart()
		m.network.now = func() time.Time { return time.Now().Add(later) }
	}
	c.sync()
	later = 2 * transition
	c.sync() // removes the device
	c.sync()
	if out := far.run("ip link; nft list table inet fairway-pods"); strings.Contains(out, "fairway-vxlan") || strings.Contains(out, "chain vxlan-") {
		t.Errorf("without egress addresses there is still\n%s", out)
	}
}

// TestEgressTables: ways keep their tables, and more ways than tables are left out.
func TestEgressTables(t *testing.T) {
	way := func(i int) plan.EgressRoute {
		return plan.EgressRoute{Is4: true, By: plan.WayRoutes, Via: netip.AddrFrom4([4]byte{10, 0, byte(i), 1}), Link: 2}
	}
	wanted := map[plan.EgressRoute]bool{}
	for i := range numbers.RouteTablesEgress + 3 {
		wanted[way(i)] = true
	}
	slots, without := assign(wanted, map[int]plan.EgressRoute{3: way(9), 4: way(9), 5: way(99)})
	if slots[way(9)] != 3 || without != 5 || len(slots) != numbers.RouteTablesEgress-2 {
		t.Errorf("way 9 has %d, %d have none, %d have one", slots[way(9)], without, len(slots))
	}
	marks := map[uint32]bool{markHere: true, markNobody: true}
	for slot := range numbers.RouteTablesEgress {
		m := gatewayMark(slot)
		if marks[m] || m&numbers.MaskEgress != numbers.MarkEgress || m&(numbers.MarkUserspace|numbers.MarkUserspaceElse|numbers.MarkMasquerade) != 0 {
			t.Errorf("mark %#x of table %d", m, slot)
		}
		marks[m] = true
	}
}
