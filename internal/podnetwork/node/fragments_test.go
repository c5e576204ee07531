package node

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
)

// fragments are the two parts of a datagram whose second eight bytes are body.
func fragments(from, to netip.Addr, id uint16, body string) (first, second []byte) {
	udp := binary.BigEndian.AppendUint16(nil, 4242)
	udp = binary.BigEndian.AppendUint16(udp, echoPort)
	udp = slices.Concat(udp, []byte{0, 16, 0, 0}, []byte(body))
	binary.BigEndian.PutUint16(udp[6:], checksum.Transport(from, to, unix.IPPROTO_UDP, udp))
	part := func(data []byte, offset uint16, more bool) []byte {
		if from.Is4() {
			p := slices.Concat(ipv4Header(from, to, len(data)), data)
			binary.BigEndian.PutUint16(p[4:], id)
			binary.BigEndian.PutUint16(p[6:], offset/8)
			if more {
				p[6] |= 0x20
			}
			p[10], p[11] = 0, 0
			binary.BigEndian.PutUint16(p[10:], checksum.Of(p[:20]))
			return p
		}
		field := offset
		if more {
			field |= 1
		}
		header := slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(8 + len(data)), unix.IPPROTO_FRAGMENT, 64}, from.AsSlice(), to.AsSlice(), []byte{unix.IPPROTO_UDP, 0})
		header = binary.BigEndian.AppendUint16(header, field)
		return slices.Concat(binary.BigEndian.AppendUint32(header, uint32(id)), data)
	}
	return part(udp[:8], 0, true), part(udp[8:], 8, false)
}

// TestForeignFragments: a part of a datagram that a pod sends from another pod's address is not put together with the other
// pod's: sources are looked at before the kernel does so for connection tracking.
func TestForeignFragments(t *testing.T) {
	c := newCluster(t, 1, dual)
	c.sync()
	m := c.machines[0]
	attacker, victim, server := m.newPod(), m.newPod(), m.newPod()
	m.run("nft 'table inet tracks { chain forward { type filter hook forward priority 0; ct state invalid accept; }; }'")
	server.run(fmt.Sprintf("nft 'table inet seen { chain in { type filter hook input priority raw; udp dport %d @th,64,64 0x6f776e6f776e6f77 counter; udp dport %[1]d counter; }; }'", echoPort))
	_, by := m.linkTo(attacker)
	_, own := m.linkTo(victim)
	for i, from := range victim.addrs {
		kind := uint16(unix.ETH_P_IP)
		if from.Is6() {
			kind = unix.ETH_P_IPV6
		}
		send := func(p *pod, mac net.HardwareAddr, packet []byte) { p.send([][]byte{frame(mac, kind, packet)}) }
		first, ownSecond := fragments(from, server.addrs[i], 7, "ownownow")
		// The checksum is the sum of both parts: another body with the same sum.
		_, falseSecond := fragments(from, server.addrs[i], 7, "owowonwn")
		send(attacker, by, falseSecond)
		send(victim, own, first)
		send(victim, own, ownSecond)
	}
	seen := func() string { return server.run("nft list table inet seen") }
	eventually(t, "the datagrams come", func() bool {
		var n, whole int
		for line := range strings.Lines(seen()) {
			if _, after, ok := strings.Cut(line, "counter packets "); ok {
				fmt.Sscan(after, &n)
				whole = n
			}
		}
		return whole >= 2
	})
	if out := seen(); strings.Count(out, "counter packets 2 ") != 2 {
		t.Errorf("datagrams have other contents than their pod sent:\n%s", out)
	}
}
