//go:build uml

package node

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// serveMuch answers every TCP connection with so many bytes.
func (n *namespace) serveMuch(port, size int) {
	n.t.Helper()
	var listener net.Listener
	err := n.do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(make([]byte, size))
			conn.Close()
		}
	}()
}

// get reads all that a server sends.
func (n *namespace) get(server netip.AddrPort) (size int, err error) {
	err = n.do(func() error {
		conn, err := net.DialTimeout("tcp", server.String(), patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		all, err := io.ReadAll(conn)
		size = len(all)
		return err
	})
	return size, err
}

// TestWireGuardEgress: pods leave by a node in another subnet, and by a neighbour, encrypted as far as that node, whatever
// family is below; in the cluster nothing changes.
func TestWireGuardEgress(t *testing.T) {
	for _, test := range []struct {
		name     string
		underlay func(string) bool
		cidrs    func(int) []string
	}{
		{"dual stack", anyFamily, dual},
		{"IPv4", any4, v4},
		{"IPv6", any6, v6},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newRouted(t, plan.WayWireGuard, test.underlay, test.cidrs)
			c.leaveEncrypted(test.underlay)
		})
	}
}

// soon is eventually with longer pauses: in virtual time they cost nothing, and each look some processes.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 30 {
		if ok() {
			return
		}
		time.Sleep(time.Second)
	}
	t.Errorf("not within 30 s: %s", what)
}

// serveOutside makes a server in the first subnet, with an address of each family that is below.
func (c *cluster) serveOutside(underlay func(string) bool) (servers []netip.Addr) {
	c.t.Helper()
	c.outside = newNamespace(c.t)
	var nets []string
	for _, a := range []string{"192.0.2.99/24", "2001:db8:0::99/64"} {
		if underlay(a) {
			servers, nets = append(servers, netip.MustParsePrefix(a).Addr()), append(nets, a)
		}
	}
	c.plug(c.outside, "br0", "out", nets...)
	for _, a := range servers {
		via := map[bool]string{true: "192.0.2.254", false: "2001:db8:0::fe"}[a.Is4()]
		c.outside.run("ip route add default via " + via)
	}
	c.outside.serve()
	return servers
}

// leaveEncrypted is TestWireGuardEgress.
func (c *cluster) leaveEncrypted(underlay func(string) bool) {
	t := c.t
	t.Helper()
	servers := c.serveOutside(underlay)
	const port, much = 8081, 200_000
	c.outside.serveMuch(port, much)
	c.watch()
	c.agree()
	gateway, mid, far := c.machines[0], c.machines[1], c.machines[2]
	p, q, plain, own := far.newPod(), mid.newPod(), far.newPod(), gateway.newPod()
	c.leaveBy(gateway, map[*pod]*machine{p: far, q: mid, own: gateway})
	leaves := func(when string) {
		t.Helper()
		for k, server := range servers {
			for i, x := range []*pod{p, q, own} {
				x.wantSource(fmt.Sprintf("%s, pod %d", when, i), server, egressOf(x.addrs[k]))
			}
			plain.wantSource(when+", a pod without an egress address", server, far.peer.Addrs[k])
		}
		reach([]*pod{p, q, plain, own})
	}
	leaves("at first")
	// Nobody says by ICMP that packets are too large.
	c.fabric.run("nft 'table inet firewall { chain forward { type filter hook forward priority 0; meta l4proto { icmp, icmpv6 } drop; }; }'")
	c.outside.run("nft 'table inet firewall { chain input { type filter hook input priority 0; icmp type destination-unreachable drop; icmpv6 type packet-too-big drop; }; }'")
	for _, server := range servers {
		if size, err := p.get(netip.AddrPortFrom(server, port)); err != nil || size != much {
			t.Errorf("%d bytes came from %v: %v", size, server, err)
		}
	}
	c.wantNonePlain()
	var generations []uint32
	for _, m := range c.machines {
		generations = append(generations, m.generation())
		m.restart()
	}
	c.sync()
	for i, m := range c.machines {
		if now := m.generation(); now != generations[i] {
			t.Errorf("node %d: an agent that starts anew changed tables: %d, now %d", i+1, generations[i], now)
		}
	}
	for _, damage := range []string{"ip link del fairway-egress", "ip link del fairway-wg", "nft delete table inet fairway-egress", "ip -4 rule del pref 1071 || true; ip -6 rule del pref 1071 || true"} {
		for _, m := range []*machine{gateway, far} {
			m.run(damage)
			c.agree()
		}
		for _, x := range []*pod{p, q} { // a peer notices after 15 s only that a device is another one, unless that one begins
			own.wantSource(damage, x.addrs[0], own.addrs[0])
		}
		leaves("after " + damage)
	}
	c.leaveBy(nil, map[*pod]*machine{p: far})
	for _, server := range servers {
		if err := p.do(func() error { return refused(server) }); err != nil {
			t.Errorf("nobody announces the address: %v", err)
		}
	}
	c.leaveBy(nil, nil)
	for i, m := range c.machines {
		if left := m.egressState() + m.run("ip -br link show type vxlan; ip route show table all | grep 'table 1101' || true"); strings.TrimSpace(left) != "0" {
			t.Errorf("node %d: still there:\n%s", i+1, left)
		}
	}
	reach([]*pod{p, q, plain, own})
}

// TestWireGuardEgressForged: through that tunnel a node sends nothing as another's, nor to pods what they did not ask for.
func TestWireGuardEgressForged(t *testing.T) {
	c := newRouted(t, plan.WayWireGuard, any4, v4)
	c.outside = newNamespace(t)
	c.plug(c.outside, "br0", "out", "192.0.2.99/24")
	c.outside.serve()
	c.agree()
	gateway, mid, far := c.machines[0], c.machines[1], c.machines[2]
	p, q := far.newPod(), mid.newPod()
	c.leaveBy(gateway, map[*pod]*machine{p: far})
	p.wantSource("a pod", outside4, egress4)
	p.run("nft 'table inet seen { chain in { type filter hook prerouting priority raw; udp dport 4242; udp sport 4242 counter; }; }'")
	c.outside.run("nft 'table inet seen { chain in { type filter hook prerouting priority raw; udp sport 4242 counter; }; }'")
	count := func(m *machine, chain string) string {
		return m.run("nft list chain inet fairway-egress " + chain + " | grep -o 'counter packets [0-9]*'")
	}
	world := netip.MustParseAddr("203.0.113.1")
	for _, test := range []struct {
		name           string
		from, to       *machine
		as             string // the node that it says to be
		source, target netip.Addr
		chain          string // that drops it
	}{
		{"another node's MAC address", mid, far, "node-1", world, p.addrs[0], "within-input"},
		{"a node that is no gateway", mid, far, "node-2", world, p.addrs[0], "within-prerouting"},
		{"the gateway, as another node's pod", gateway, far, "node-1", q.addrs[0], p.addrs[0], "within-prerouting"},
		{"the gateway, unasked", gateway, far, "node-1", world, p.addrs[0], "prerouting"},
		{"a pod of another node", mid, gateway, "node-2", p.addrs[0], outside4, "within-prerouting"},
		{"its own pod, which has no egress address", mid, gateway, "node-2", q.addrs[0], outside4, "within-prerouting"},
	} {
		packet := vxlanPacket(numbers.VNIEgress, test.to.peer.Name, test.source, test.target)
		m := plan.TunnelMAC(test.as)
		copy(packet[14:], m[:])
		before := count(test.to, test.chain)
		test.from.send(netip.AddrPortFrom(test.to.peer.PodCIDRs[0].Addr(), numbers.PortVXLAN), packet)
		soon(t, test.name+" is dropped", func() bool { return count(test.to, test.chain) != before })
	}
	// Nor who sends to a node's address as such, nor a pod whose packets its node would give its own address.
	plain := vxlanPacket(numbers.VNIEgress, "node-3", world, p.addrs[0])
	before := count(far, "within-input")
	mid.send(netip.AddrPortFrom(far.peer.Addrs[0], numbers.PortVXLAN), plain)
	soon(t, "what is not encrypted is dropped", func() bool { return count(far, "within-input") != before })
	gateway.newPod().masqueradedTo(gateway, far, plain)
	for _, n := range []*namespace{p.namespace, c.outside} {
		if out := n.run("nft list table inet seen"); !strings.Contains(out, "counter packets 0 ") {
			t.Errorf("a forged packet came:\n%s", out)
		}
	}
	p.wantSource("a pod, after all", outside4, egress4)
}

// masqueradedTo sends to a node's end of the tunnel as a pod, with its node masquerading it, and wants it dropped there.
func (p *pod) masqueradedTo(m, to *machine, packet []byte) {
	p.t.Helper()
	m.run("nft 'table inet service { chain post { type nat hook postrouting priority 90; udp dport 4789 ip saddr " + p.addrs[0].String() + " masquerade; }; }'")
	defer m.run("nft delete table inet service")
	p.namespace.send(netip.AddrPortFrom(to.peer.PodCIDRs[0].Addr(), numbers.PortVXLAN), packet)
	soon(p.t, "a pod's packet for the tunnel is dropped", func() bool {
		return strings.Contains(m.run("nft list chain inet fairway-egress forward"), "counter packets 1 ")
	})
}

// TestWireGuardEgressByNodes is TestEgressByNodesThroughTunnel with encryption. The gateway does not take such packets for itself.
func TestWireGuardEgressByNodes(t *testing.T) {
	c := newRouted(t, plan.WayWireGuard, anyFamily, dual)
	c.serveFar()
	c.agree()
	c.wantEgressByNodes(c.machines[1:]...)
}
