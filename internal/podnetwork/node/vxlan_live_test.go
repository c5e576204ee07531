package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// state is all of the tunnel that the kernel holds.
func (m *machine) tunnelState() string {
	m.t.Helper()
	return m.run(`ip -d link show fairway-vxlan | sed 's/^[0-9]*: //;s/allmulti [0-9]* //'; ip -o addr show dev fairway-vxlan | awk '{print $3, $4}'
		bridge fdb show dev fairway-vxlan | sort; ip neigh show dev fairway-vxlan nud permanent | sort; ip -6 neigh show dev fairway-vxlan nud permanent | sort`) + m.routes()
}

// TestTunnelRepairs: what another program does to the tunnel is undone.
func TestTunnelRepairs(t *testing.T) {
	c := newRouted(t, plan.WayVXLAN, anyFamily, dual)
	c.sync()
	m := c.machines[0]
	want := m.tunnelState()
	far := plan.TunnelMAC("node-3")
	for _, damage := range []string{
		"ip link del fairway-vxlan",
		"ip link set fairway-vxlan down",
		"ip link set fairway-vxlan mtu 1300",
		"ip link set fairway-vxlan address 02:00:00:00:00:07",
		"ip link del fairway-vxlan; ip link add fairway-vxlan type vxlan id 71 dstport 4790 local 192.0.2.1 nolearning",
		"ip link del fairway-vxlan; ip link add fairway-vxlan type vxlan id 70 dstport 4789 local 192.0.2.1",
		"ip addr flush dev fairway-vxlan",
		"ip addr add 10.9.9.9/24 dev fairway-vxlan",
		fmt.Sprintf("bridge fdb del %s dev fairway-vxlan", far),
		fmt.Sprintf("bridge fdb replace %s dev fairway-vxlan dst 192.0.2.77 self permanent", far),
		"bridge fdb append 00:00:00:00:00:00 dev fairway-vxlan dst 192.0.2.77 self permanent",
		"bridge fdb add 02:00:00:00:00:08 dev fairway-vxlan dst 192.0.2.77 self permanent",
		"ip neigh del 10.244.3.0 dev fairway-vxlan",
		fmt.Sprintf("ip neigh replace %s dev fairway-vxlan lladdr 02:00:00:00:00:08 nud permanent", plan.TunnelGateway("node-3", m.peer.PodCIDRs[1])),
		"ip neigh add 10.244.7.0 dev fairway-vxlan lladdr 02:00:00:00:00:08 nud permanent",
		"ip route del 10.244.3.0/24 proto 70",
		"ip -6 route replace fd00:10:244:3::/64 via 2001:db8::fe proto 70",
	} {
		m.run(damage)
		if m.tunnelState0() == want {
			t.Fatalf("%s did no damage", damage)
		}
		m.mustSync(c.peers())
		if got := m.tunnelState(); got != want {
			t.Errorf("after %q and Sync:\n%s\nwant:\n%s", damage, got, want)
		}
	}
}

// tunnelState0 is tunnelState, or nothing where there is no device.
func (m *machine) tunnelState0() string {
	if !strings.Contains(m.run("ip link"), "fairway-vxlan") {
		return ""
	}
	return m.tunnelState()
}

// TestTunnelFollowsNodes: nodes come, go and change their addresses, and connections between pods go on; nothing is left of them.
func TestTunnelFollowsNodes(t *testing.T) {
	c := newRouted(t, plan.WayAuto, any4, v4)
	c.sync()
	m := c.machines[0]
	before := m.tunnelState()
	pods := []*pod{m.newPod()}

	fourth := c.newMachine("node-4", "br1", "192.0.3.4/24")
	fourth.run("ip route add default via 192.0.3.254")
	fourth.peer.PodCIDRs, fourth.config.Way = prefixes("10.244.4.0/24"), plan.WayAuto
	fourth.restart()
	c.sync()
	pods = append(pods, fourth.newPod())
	reach(pods)
	pods[1].echo()
	open := newTalk("from node-1 to node-4", pods[0], pods[1].addrs[0])
	open.goOn("at first")

	fourth.run("ip addr add 192.0.3.44/24 dev eth0; ip addr del 192.0.3.4/24 dev eth0; ip addr add 192.0.3.44/24 dev eth0 || true; ip route replace default via 192.0.3.254")
	fourth.peer.Addrs = addresses("192.0.3.44")
	c.sync()
	open.goOn("after node-4 has another address")
	reach(pods)
	if out := m.tunnelState(); strings.Contains(out, "192.0.3.4 ") {
		t.Errorf("the former address is still there:\n%s", out)
	}

	c.machines = c.machines[:3]
	c.sync()
	reach(pods) // its routes stay for a minute
	open.goOn("after the object of node-4 is gone")
	m.network.now = func() time.Time { return time.Now().Add(plan.KeepDeparted) }
	m.mustSync(c.peers())
	if after := m.tunnelState(); after != before {
		t.Errorf("before the node came:\n%s\nafter it had gone:\n%s", before, after)
	}
	if out := m.run("nft list table inet fairway-pods"); strings.Contains(out, "192.0.3.44") || strings.Contains(out, "10.244.4.0") {
		t.Errorf("the node that has gone is still in the rules:\n%s", out)
	}
}

const echoPort = 9000

// echo answers on TCP and UDP with what it gets.
func (n *namespace) echo() {
	n.t.Helper()
	var l net.Listener
	var u net.PacketConn
	err := n.do(func() (err error) {
		if l, err = net.Listen("tcp", fmt.Sprintf(":%d", echoPort)); err == nil {
			u, err = net.ListenPacket("udp", fmt.Sprintf(":%d", echoPort))
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(n.t.Context(), func() { conn.Close() }) // also where its client's end is not heard of
			go func() { io.Copy(conn, conn); conn.Close() }()
		}
	}()
	go func() {
		b := make([]byte, 65536)
		for {
			size, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			u.WriteTo(b[:size], from)
		}
	}()
}

// A talk is a TCP connection and a UDP flow between two pods, that last.
type talk struct {
	t        testing.TB
	what     string
	tcp, udp net.Conn
	count    uint32
}

func newTalk(what string, from *pod, to netip.Addr) *talk {
	from.t.Helper()
	k := &talk{t: from.t, what: what}
	at := netip.AddrPortFrom(to, echoPort).String()
	err := from.do(func() (err error) {
		if k.tcp, err = net.DialTimeout("tcp", at, patience); err == nil {
			k.udp, err = net.Dial("udp", at)
		}
		return err
	})
	if err != nil {
		from.t.Fatalf("%s: %v", what, err)
	}
	from.t.Cleanup(func() { k.tcp.Close(); k.udp.Close() })
	return k
}

// go on sends one datagram, which nothing repeats, and much by TCP, in full segments.
func (k *talk) goOn(when string) {
	k.t.Helper()
	k.count++
	want := binary.BigEndian.AppendUint32(nil, k.count)
	got := make([]byte, 4)
	k.udp.SetDeadline(time.Now().Add(patience))
	if _, err := k.udp.Write(want); err != nil {
		k.t.Errorf("%s, %s: send a datagram: %v", k.what, when, err)
	}
	if _, err := k.udp.Read(got); err != nil || !bytes.Equal(got, want) {
		k.t.Errorf("%s, %s: the datagram is lost: %v, %v", k.what, when, got, err)
	}
	much := bytes.Repeat([]byte{byte(k.count)}, 200_000)
	back := make([]byte, len(much))
	k.tcp.SetDeadline(time.Now().Add(patience))
	failed := make(chan error, 1)
	go func() {
		_, err := k.tcp.Write(much)
		failed <- err
	}()
	_, err := io.ReadFull(k.tcp, back)
	if sent := <-failed; sent != nil || err != nil || !bytes.Equal(back, much) {
		k.t.Fatalf("%s, %s: the connection broke: %v, %v", k.what, when, sent, err)
	}
}

// converse begins to talk from a pod of the first node to one of the second, in each family, and returns what
// goes on with all of it.
func (c *cluster) converse() (everybody func(when string)) {
	a, b := c.machines[0].newPod(), c.machines[1].newPod()
	b.echo()
	var talks []*talk
	for i, addr := range b.addrs {
		talks = append(talks, newTalk(fmt.Sprintf("IPv%d", 4+2*i), a, addr))
	}
	return func(when string) {
		c.t.Helper()
		for _, k := range talks {
			k.goOn(when)
		}
	}
}

// TestWayChangesLive: no packet between pods is lost while one node after the other changes
// to another way, whatever the order.
func TestWayChangesLive(t *testing.T) {
	c := newRouted(t, plan.WayRoutes, anyFamily, dual)
	c.sync()
	everybody := c.converse()
	everybody("at first")
	later := time.Duration(0)
	for _, way := range []plan.Way{plan.WayVXLAN, plan.WayRoutes, plan.WayAuto, plan.WayVXLAN, plan.WayAuto, plan.WayRoutes} {
		for _, m := range c.machines {
			c.change(m, way, func() time.Time { return time.Now().Add(later) }, everybody)
		}
		later += transition
		for _, m := range c.machines {
			m.mustSync(c.peers())
			everybody(fmt.Sprintf("when %s has settled with %s", m.peer.Name, way))
		}
		routes := c.machines[0].routes()
		if got := strings.Contains(routes, "10.244.2.0/24 via 10.244.2.0 dev fairway-vxlan"); got != (way == plan.WayVXLAN) {
			t.Errorf("%s: the routes to a neighbour are:\n%s", way, routes)
		}
		if got := strings.Contains(c.machines[0].run("ip link"), "fairway-vxlan"); got != (way != plan.WayRoutes) {
			t.Errorf("%s: the device is there: %t", way, got)
		}
	}
}

// vxlanPacket is what a node would send: a datagram of 4 bytes between pods, for the node.
func vxlanPacket(vni uint32, node string, from, to netip.Addr) []byte {
	udp := binary.BigEndian.AppendUint16(nil, 4242)
	udp = binary.BigEndian.AppendUint16(udp, echoPort)
	udp = append(udp, 0, 12, 0, 0, 'f', 'a', 'k', 'e')
	ip := append(ipv4Header(from, to, len(udp)), udp...)
	m := plan.TunnelMAC(node)
	head := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	return slices.Concat(head, m[:], []byte{2, 0, 0, 0, 0, 9, 8, 0}, ip)
}

// ipv4Header is that of a datagram of UDP with so many bytes.
func ipv4Header(from, to netip.Addr, size int) []byte {
	ip := []byte{0x45, 0, 0, byte(20 + size), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = slices.Concat(ip, from.AsSlice(), to.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum.Of(ip))
	return ip
}

// send sends a datagram.
func (n *namespace) send(to netip.AddrPort, packet []byte) { n.sendBy(net.Dialer{}, to, packet) }

// sendAs sends a datagram from an address that is not the pod's.
func (p *pod) sendAs(from netip.Addr, to netip.AddrPort, packet []byte) {
	p.t.Helper()
	p.run(fmt.Sprintf("ip addr replace %s dev lo nodad", netip.PrefixFrom(from, from.BitLen())))
	p.sendBy(net.Dialer{LocalAddr: &net.UDPAddr{IP: from.AsSlice()}}, to, packet)
}

func (n *namespace) sendBy(d net.Dialer, to netip.AddrPort, packet []byte) {
	n.t.Helper()
	err := n.do(func() error {
		conn, err := d.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(packet)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// TestForgedPackets: who is no node puts nothing into the tunnel, neither from outside nor
// from a pod, which its node would give its own address; nor does a node for addresses that are
// no pod's.
func TestForgedPackets(t *testing.T) {
	for _, underlay := range []func(string) bool{any4, any6} {
		c := newRouted(t, plan.WayVXLAN, underlay, dual)
		c.sync()
		near, far := c.machines[0], c.machines[2]
		attacker, victim := near.newPod(), far.newPod()
		var heard net.PacketConn
		if err := victim.do(func() (err error) { heard, err = net.ListenPacket("udp", fmt.Sprintf(":%d", echoPort)); return err }); err != nil {
			t.Fatal(err)
		}
		defer heard.Close()
		end := netip.AddrPortFrom(far.peer.Addrs[0], 4789)
		send := func(n *namespace, packet []byte) { n.send(end, packet) }
		good := vxlanPacket(70, "node-3", attacker.addrs[0], victim.addrs[0])
		send(c.fabric, good)
		eventually(t, "a stranger's packet is dropped", func() bool { return far.counted("vxlan-input") == 1 })
		send(attacker.namespace, good)
		eventually(t, "a pod's packet is dropped", func() bool { return near.counted("vxlan-forward") == 1 })
		other := netip.MustParseAddr("2001:db8:51::3") // of another network: the pod's node masquerades what goes there
		if end.Addr().Is4() {
			other = netip.MustParseAddr("198.51.100.3")
		}
		far.run(fmt.Sprintf("ip addr add %s dev eth0", netip.PrefixFrom(other, other.BitLen())))
		// The kernel makes an IPv6 address local from a work queue, a moment after it is added.
		eventually(t, "the address is the node's", func() bool { return strings.HasPrefix(far.run("ip route get "+other.String()), "local ") })
		c.fabric.run(fmt.Sprintf("ip route add %s via %s", other, far.peer.Addrs[0]))
		attacker.namespace.send(netip.AddrPortFrom(other, numbers.PortVXLAN), vxlanPacket(numbers.VNI, "node-3", netip.MustParseAddr("10.244.2.77"), victim.addrs[0]))
		eventually(t, "a pod's packet to another address of a node is dropped", func() bool { return far.counted("vxlan-input") == 2 })
		near.run(`nft 'table inet seen {
			chain come { type filter hook prerouting priority -460; iifname "fw*" udp dport 4789 counter; }
			chain passed { type filter hook prerouting priority raw; iifname "fw*" udp dport 4789 counter; }
		}'`)
		attacker.sendAs(far.peer.Addrs[0], netip.AddrPortFrom(near.peer.Addrs[0], 4789), vxlanPacket(70, "node-1", victim.addrs[0], attacker.addrs[0]))
		eventually(t, "a pod sends with another node's address", func() bool {
			return strings.Contains(near.run("nft list chain inet seen come"), "counter packets 1 ")
		})
		send(near.namespace, vxlanPacket(70, "node-3", netip.MustParseAddr("203.0.113.1"), victim.addrs[0]))
		eventually(t, "a false source inside is dropped", func() bool { return far.counted("vxlan-strangers") == 1 })
		send(c.fabric, vxlanPacket(71, "node-3", attacker.addrs[0], victim.addrs[0])) // another program's network
		send(near.namespace, good)                                                    // a node's: this test would see the others
		b := make([]byte, 64)
		heard.SetReadDeadline(time.Now().Add(patience))
		n, from, err := heard.ReadFrom(b)
		if err != nil || string(b[:n]) != "fake" || from.(*net.UDPAddr).Port != 4242 {
			t.Errorf("a node's packet did not come: %q from %v, %v", b[:n], from, err)
		}
		heard.SetReadDeadline(time.Now())
		if n, from, err = heard.ReadFrom(b); err == nil {
			t.Errorf("a second packet came: %q from %v", b[:n], from)
		}
		if out := near.run("nft list chain inet seen passed"); !strings.Contains(out, "counter packets 0 ") {
			t.Errorf("a pod's packet with another node's address passed:\n%s", out)
		}
		if far.counted("vxlan-input") != 2 {
			t.Error("packets of another network were dropped")
		}
	}
}
