package node

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/testing/tabletest"
)

// TestLinkUp: when a link is up again, the routes to other nodes' pods that went with it are there at once, not only when
// everything is looked at again.
func TestLinkUp(t *testing.T) {
	was := resync
	t.Cleanup(func() { resync = was })
	resync = time.Hour
	c := newCluster(t, 2, v4)
	c.run()
	m := c.machines[0]
	m.leads(c.machines[1], "via")
	for range 3 {
		m.run("ip link set eth0 down")
		if out := m.routes(); strings.Contains(out, " via ") {
			t.Fatalf("routes without a link:\n%s", out)
		}
		m.run("ip link set eth0 up")
		m.leads(c.machines[1], "via")
	}
}

// Only the kernel's routes to networks of links count: others come and go with each pod.
func TestOfNetwork(t *testing.T) {
	message := func(family, length, table, protocol, kind byte, to string) []byte {
		m := make([]byte, unix.SizeofRtMsg)
		m[0], m[1], m[4], m[5], m[7] = family, length, table, protocol, kind
		return fwnetlink.Append(m, unix.RTA_DST, netip.MustParseAddr(to).AsSlice())
	}
	const v4, v6, main, kernel, unicast = unix.AF_INET, unix.AF_INET6, unix.RT_TABLE_MAIN, unix.RTPROT_KERNEL, unix.RTN_UNICAST
	for name, test := range map[string]struct {
		message []byte
		want    bool
	}{
		"IPv4":                 {message(v4, 24, main, kernel, unicast, "192.0.2.0"), true},
		"IPv6":                 {message(v6, 64, main, kernel, unicast, "2001:db8::"), true},
		"link-local of IPv4":   {message(v4, 16, main, kernel, unicast, "169.254.0.0"), true},
		"link-local":           {message(v6, 64, main, kernel, unicast, "fe80::"), false},
		"a pod's":              {message(v4, 32, main, 70, unicast, "10.244.1.2"), false},
		"a default route":      {message(v4, 0, main, unix.RTPROT_DHCP, unicast, "0.0.0.0"), false},
		"a broadcast address":  {message(v4, 32, unix.RT_TABLE_LOCAL, kernel, unix.RTN_BROADCAST, "192.0.2.255"), false},
		"cut off":              {make([]byte, unix.SizeofRtMsg-1), false},
		"an attribute cut off": {append(message(v4, 24, main, kernel, unicast, "192.0.2.0"), binary.NativeEndian.AppendUint16(nil, 9)...), false},
	} {
		if got := ofNetwork(test.message); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// TestFlush: the pods' table that another program removes is there again within a second, without a timer.
func TestFlush(t *testing.T) {
	was := resync
	t.Cleanup(func() { resync = was })
	resync = time.Hour
	c := newCluster(t, 2, v4)
	m := c.machines[0]
	var tables nft.Monitor
	m.network.TablesChanged = tables.Changed(numbers.TablePods, numbers.TableEgress)
	c.run()
	m.leads(c.machines[1], "via")
	tabletest.Start(t, m.do, &tables)
	tabletest.Flush(t, m.do, numbers.TablePods)
}
