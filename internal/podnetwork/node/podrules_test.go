package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/node/tunnel"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// flood sends datagrams from an address that is not the pod's, until the test ends.
func (p *pod) flood(from, to netip.Addr) {
	p.t.Helper()
	p.run(fmt.Sprintf("ip addr replace %s dev lo nodad", netip.PrefixFrom(from, from.BitLen())))
	var conn net.Conn
	err := p.do(func() (err error) {
		conn, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: from.AsSlice()}}).Dial("udp", netip.AddrPortFrom(to, echoPort).String())
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close()
		for tick := time.NewTicker(200 * time.Microsecond); ctx.Err() == nil; <-tick.C {
			conn.Write([]byte("false")) // refused by ICMP or not
		}
	}()
	p.t.Cleanup(func() { stop(); <-done })
}

// TestChecksOfTunnels: the chains of the tunnel are there while there is its device, and no longer, so that packets of
// other nodes' pods do not pay for them; no false packet passes while they come and go; and there is no device without
// them.
func TestChecksOfTunnels(t *testing.T) {
	c := newCluster(t, 2, dual)
	c.sync()
	m := c.machines[0]
	m.run(`nft 'table inet seen {
		chain in {
			type filter hook prerouting priority raw
			ip saddr 198.51.100.7 counter
			ip6 saddr 2001:db8:51::7 counter
		}
	}'`)
	attacker := m.newPod()
	attacker.flood(netip.MustParseAddr("198.51.100.7"), outside4)
	attacker.flood(netip.MustParseAddr("2001:db8:51::7"), outside6)
	wantChains := func(when, want string) {
		t.Helper()
		have := ""
		for _, line := range strings.Split(m.run("nft list chains inet"), "\n") {
			if name, ok := strings.CutPrefix(line, "\tchain "); ok && (strings.HasPrefix(name, "vxlan-") || strings.HasPrefix(name, "encrypted-")) {
				have += strings.TrimSuffix(name, " {") + " "
			}
		}
		if have != want {
			t.Errorf("%s: the chains are %q, want %q", when, have, want)
		}
		eventually(t, "false packets are dropped "+when, func() bool { return m.counted("false-source") > 1 })
	}
	const all = "vxlan-strangers vxlan-inside vxlan-output vxlan-input vxlan-forward "
	wantChains("with routes", "")
	later := time.Duration(0)
	for range 3 {
		m.config.Way = plan.WayVXLAN
		m.restart()
		m.network.rules.table.FailWrites(func() error { return errors.New("the test says no") })
		if err := m.sync(c.peers()); err == nil || strings.Contains(m.run("ip link"), tunnel.VXLANLink) {
			t.Errorf("without rules: %v, and the links are:\n%s", err, m.run("ip link"))
		}
		m.network.rules.table.FailWrites(nil)
		m.mustSync(c.peers())
		wantChains("with the tunnel", all)

		m.config.Way = plan.WayRoutes
		m.restart()
		m.network.now = func() time.Time { return time.Now().Add(later) }
		m.mustSync(c.peers())
		wantChains("while others still send by the tunnel", all)
		later += transition
		m.mustSync(c.peers()) // removes the device
		wantChains("when the device has gone", all)
		m.mustSync(c.peers())
		wantChains("after it", "")
	}
	if out := m.run("nft list table inet seen"); strings.Count(out, "counter packets 0 ") != 2 {
		t.Errorf("false packets passed:\n%s", out)
	}
	m.run("nft flush chain inet fairway-pods source-check")
	eventually(t, "this test sees false packets", func() bool {
		return !strings.Contains(m.run("nft list table inet seen"), "counter packets 0 ")
	})
}
