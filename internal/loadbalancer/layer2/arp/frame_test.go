package arp

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

var (
	own, other = MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}
	vip4, vip6 = netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	client4    = netip.MustParseAddr("192.0.2.99")
	client6    = netip.MustParseAddr("fe80::99")
	source6    = netip.MustParseAddr("fe80::1")
)

// TestFrames: parseFrame reads the package's own frames.
func TestFrames(t *testing.T) {
	group := solicitedNode(vip6)
	if group.String() != "ff02::1:ff00:10" || multicastMAC(group) != (MAC{0x33, 0x33, 0xff, 0, 0, 0x10}) {
		t.Errorf("group %v, MAC %v", group, multicastMAC(group))
	}
	ask6 := ndpFrame(icmp6NS, multicastMAC(group), other, client6, group, vip6, 0)
	for name, c := range map[string]struct {
		frame []byte
		want  message
	}{
		"ARP request":  {arpFrame(arpRequest, broadcast, other, client4, MAC{}, vip4), message{from: other, sender: client4, target: vip4, isClaim: true, mac: other, isRequest: true}},
		"ARP reply":    {arpFrame(arpReply, own, other, vip4, own, client4), message{from: other, sender: vip4, target: client4, isClaim: true, mac: other}},
		"probe":        {probe(vip4, own), message{from: own, sender: netip.IPv4Unspecified(), target: vip4, mac: own, isRequest: true}},
		"request form": {gratuitous(vip4, own, source6)[0], message{from: own, sender: vip4, target: vip4, isClaim: true, mac: own}},
		"reply form":   {gratuitous(vip4, own, source6)[1], message{from: own, sender: vip4, target: vip4, isClaim: true, mac: own}},
		"solicitation": {ask6, message{from: other, sender: client6, target: vip6, isRequest: true}},
		"probe of v6":  {probe(vip6, own), message{from: own, sender: netip.IPv6Unspecified(), target: vip6, isRequest: true}},
		"unsolicited":  {gratuitous(vip6, own, source6)[0], message{from: own, sender: vip6, isClaim: true, mac: own}},
	} {
		q, ok := parseFrame(c.frame)
		if !ok || q != c.want {
			t.Errorf("%s: %+v %v, want %+v", name, q, ok, c.want)
		}
	}
	q, _ := parseFrame(ask6)
	if a, ok := parseFrame(reply(q, own, source6)); !ok || a.sender != vip6 || a.mac != own || MAC(reply(q, own, source6)[:6]) != other {
		t.Errorf("the answer is read as %+v", a)
	}
	// The sum over a packet with its checksum is zero.
	na := gratuitous(vip6, own, source6)[0]
	if sum := checksum.Transport(source6, allNodes, icmp6, na[54:]); sum != 0 {
		t.Errorf("checksum %#x", sum)
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add(probe(vip4, own))
	f.Add(probe(vip6, own))
	f.Add(gratuitous(vip6, own, source6)[0])
	f.Add(gratuitous(vip4, own, source6)[0])
	f.Fuzz(func(t *testing.T, b []byte) {
		q, ok := parseFrame(b)
		if !ok || !q.isRequest || q.target.IsUnspecified() {
			return
		}
		if q.target.Is4() != q.sender.Is4() {
			t.Errorf("%+v", q)
		}
		if a, ok := parseFrame(reply(q, own, source6)); !ok || !a.isClaim || a.sender != q.target || a.mac != own {
			t.Errorf("the answer to %+v is read as %+v, %v", q, a, ok)
		}
	})
}
