package node

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// tooBig is an ICMP message which says that a packet of the tunnel between two nodes was too big for a way.
func tooBig(from, to netip.Addr, mtu uint16, inside []byte) []byte {
	udp := binary.BigEndian.AppendUint16(nil, 40000)
	udp = binary.BigEndian.AppendUint16(udp, numbers.PortVXLAN)
	udp = append(binary.BigEndian.AppendUint16(udp, uint16(8+len(inside))), 0, 0)
	udp = append(udp, inside...)
	if from.Is6() {
		ip := slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(udp)), 17, 64}, from.AsSlice(), to.AsSlice())
		return slices.Concat([]byte{2, 0, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, ip, udp) // the kernel adds the checksum
	}
	icmp := slices.Concat([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, ipv4Header(from, to, len(udp)), udp)
	binary.BigEndian.PutUint16(icmp[2:], checksum.Of(icmp))
	return icmp
}

// TestForgedPathMTU: a pod cannot tell a node, its own or another, that only small packets reach a third node. The kernel asks neither who
// sends such a message nor whether it sent the packet in it, and would cut all packets between the nodes for ten minutes.
// A message from the network counts.
func TestForgedPathMTU(t *testing.T) {
	for _, underlay := range []func(string) bool{any4, any6} {
		c := newRouted(t, plan.WayVXLAN, underlay, dual)
		c.sync()
		near, far := c.machines[0], c.machines[2]
		attacker, neighbour, victim := near.newPod(), c.machines[1].newPod(), far.newPod()
		from, to := near.peer.Addrs[0], far.peer.Addrs[0]
		network := "ip4:icmp"
		if from.Is6() {
			network = "ip6:ipv6-icmp"
		}
		const mtu = 1300
		message := tooBig(from, to, mtu, vxlanPacket(numbers.VNI, "node-3", attacker.addrs[0], victim.addrs[0]))
		say := func(n *namespace) {
			t.Helper()
			err := n.do(func() error {
				conn, err := net.Dial(network, from.String())
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = conn.Write(message)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		way := func() string { return near.run("ip route get " + to.String()) }
		for i, pod := range []*pod{attacker, neighbour} {
			say(pod.namespace)
			eventually(t, "a pod's message is dropped, or counts", func() bool {
				return strings.Contains(way(), "mtu") || near.counted("path-mtu-pods") == i+1
			})
			if now := way(); strings.Contains(now, "mtu") {
				t.Errorf("a pod has changed the way to another node: %s", now)
			}
		}
		say(c.fabric)
		eventually(t, "a router's message counts", func() bool { return strings.Contains(way(), fmt.Sprintf("mtu %d", mtu)) })
	}
}
