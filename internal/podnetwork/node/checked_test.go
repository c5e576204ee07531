package node

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// emptyDatagram is one of UDP without contents, in IP.
func emptyDatagram(from, to netip.Addr) []byte {
	udp := []byte{0x10, 0x92, byte(echoPort >> 8), byte(echoPort & 0xff), 0, 8, 0, 0}
	if from.Is6() {
		return slices.Concat([]byte{0x60, 0, 0, 0, 0, 8, unix.IPPROTO_UDP, 64}, from.AsSlice(), to.AsSlice(), udp)
	}
	return slices.Concat(ipv4Header(from, to, len(udp)), udp)
}

// TestChecked: what is remembered of a pod's own addresses lets no other one pass: neither those from which
// one may send to some destinations only, nor one whose route has gone.
func TestChecked(t *testing.T) {
	c := newCluster(t, 1, dual)
	c.sync()
	m := c.machines[0]
	p := m.newPod()
	c.outside.serve()
	m.run(`nft 'table inet seen {
		chain in {
			type filter hook prerouting priority raw
			iifname "fw*" ip saddr 0.0.0.0 ip daddr 255.255.255.255 counter
			iifname "fw*" ip6 saddr :: ip6 daddr ff02::1:ff00:1 counter
			iifname "fw*" ip saddr 0.0.0.0 ip daddr != 255.255.255.255 counter
			iifname "fw*" ip6 saddr :: ip6 daddr != ff00::/8 counter
		}
	}'`)
	for i, addr := range addresses(outside4.String(), outside6.String()) {
		p.wantSource("its own address", addr, m.peer.Addrs[i])
		set := fmt.Sprintf("checked%d", 4+2*i)
		if out := m.run("nft list set inet fairway-pods " + set); !strings.Contains(out, p.addrs[i].String()) {
			t.Errorf("the pod's address is not remembered: %s", out)
		}
	}
	_, mac := m.linkTo(p)
	none4, none6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	every, group := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 1}
	p.send([][]byte{
		frame(every, unix.ETH_P_IP, emptyDatagram(none4, netip.MustParseAddr("255.255.255.255"))), // as a client of DHCP
		frame(group, unix.ETH_P_IPV6, nd(135, none6, netip.MustParseAddr("ff02::1:ff00:1"), p.addrs[1])),
		frame(mac, unix.ETH_P_IP, emptyDatagram(none4, outside4)),
		frame(mac, unix.ETH_P_IPV6, emptyDatagram(none6, outside6)),
	})
	eventually(t, "packets from no address are dropped", func() bool { return m.counted("false-source") == 2 })
	if out := m.run("nft list table inet seen"); strings.Count(out, "counter packets 1 ") != 2 || strings.Count(out, "counter packets 0 ") != 2 {
		t.Errorf("of packets from no address came:\n%s", out)
	}
	for i, addr := range p.addrs {
		before := m.counted("false-source")
		p.flood(addr, []netip.Addr{outside4, outside6}[i])
		m.run(fmt.Sprintf("ip route del %s", addr))
		eventually(t, "what a pod sends whose route has gone is dropped", func() bool { return m.counted("false-source") > before })
	}
}
