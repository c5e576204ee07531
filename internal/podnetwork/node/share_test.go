package node

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/checksum"
)

// openFragment is the first fragment of a datagram that never becomes complete.
func openFragment(from, to netip.Addr, id uint32) []byte {
	data := make([]byte, 1400)
	binary.BigEndian.PutUint16(data[2:], echoPort)
	if from.Is4() {
		p := slices.Concat(ipv4Header(from, to, len(data)), data)
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		binary.BigEndian.PutUint16(p[4:], uint16(id))
		p[6], p[10], p[11] = 0x20, 0, 0
		binary.BigEndian.PutUint16(p[10:], checksum.Of(p[:20]))
		return p
	}
	header := slices.Concat([]byte{0x60, 0, 0, 0, 0, 0, unix.IPPROTO_FRAGMENT, 64}, from.AsSlice(), to.AsSlice(), []byte{unix.IPPROTO_UDP, 0, 0, 1})
	binary.BigEndian.PutUint16(header[4:], uint16(8+len(data)))
	return slices.Concat(binary.BigEndian.AppendUint32(header, id), data)
}

// floodFragments sends first fragments from a pod, as fast as it can.
func (p *pod) floodFragments(m *machine, to netip.Addr, count int) {
	p.t.Helper()
	from, kind := p.addrs[0], uint16(unix.ETH_P_IP)
	if to.Is6() {
		from, kind = p.addrs[1], unix.ETH_P_IPV6
	}
	_, mac := m.linkTo(p)
	var frames [][]byte
	for i := range count {
		frames = append(frames, frame(mac, kind, openFragment(from, to, uint32(i+1))))
	}
	p.send(frames)
}

// wantDatagrams fails unless datagrams of 4,000 bytes come back from an echo.
func (p *pod) wantDatagrams(what string, to netip.Addr) {
	p.t.Helper()
	err := p.do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, echoPort).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		for i := range 20 {
			want, got := bytes.Repeat([]byte{byte(i)}, 4000), make([]byte, 4000)
			if _, err := conn.Write(want); err != nil {
				return err
			}
			if err := conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
				return err
			}
			if _, err := conn.Read(got); err != nil || !bytes.Equal(got, want) {
				return fmt.Errorf("datagram %d: %w", i, err)
			}
		}
		return nil
	})
	if err != nil {
		p.t.Errorf("%s, to %v: %v", what, to, err)
	}
}

// TestFragmentsOfOnePod: a pod that sends fragments of datagrams that never become complete does not keep others from sending large
// datagrams through the node. The node says which pod that is. The greedy pod's other packets pass.
func TestFragmentsOfOnePod(t *testing.T) {
	for _, count := range []int{4000, 40_000} {
		c := newCluster(t, 2, dual)
		c.sync()
		m := c.machines[0]
		attacker, victim, server := m.newPod(), m.newPod(), c.machines[1].newPod()
		server.echo()
		for i, addr := range server.addrs {
			attacker.floodFragments(m, addr, count)
			victim.wantDatagrams(fmt.Sprintf("after %d fragments of another pod", count), addr)
			attacker.wantSource("the attacker", addr, attacker.addrs[i])
		}
		var told string
		m.config.OverShare = func(message string) { told = message }
		m.restart()
		m.mustSync(c.peers())
		if over := count > DefaultFragments; over != strings.Contains(told, attacker.addrs[0].String()) || strings.Contains(told, victim.addrs[0].String()+",") {
			t.Errorf("%d fragments: the node says %q", count, told)
		}
		if log := m.log.String(); !strings.Contains(log, "more than 2500 IP fragments a second") {
			t.Errorf("%d fragments: the log is\n%s", count, log)
		}
	}
}

// TestFragmentSettings: an administrator's settings stay, and without a limit all settings and rules stay as they are.
func TestFragmentSettings(t *testing.T) {
	c := newCluster(t, 1, dual)
	m := c.machines[0]
	read := func() string {
		return strings.Join(strings.Fields(m.run("cd /proc/sys/net; cat ipv4/ipfrag_high_thresh ipv4/ipfrag_time")), " ")
	}
	m.config.Fragments = 0
	m.restart()
	c.sync()
	if got := read(); got != "4194304 30" || strings.Contains(m.run("nft list table inet fairway-pods"), "fragments") {
		t.Errorf("without a limit the node has %s, and rules about fragments", got)
	}
	m.run("echo 134217728 > /proc/sys/net/ipv4/ipfrag_high_thresh; echo 20 > /proc/sys/net/ipv4/ipfrag_time")
	m.config.Fragments = DefaultFragments
	m.restart()
	c.sync()
	if got := read(); got != "134217728 20" {
		t.Errorf("an administrator's settings have become %s", got)
	}
	m.run("echo 4194304 > /proc/sys/net/ipv4/ipfrag_high_thresh; echo 30 > /proc/sys/net/ipv4/ipfrag_time")
	c.sync()
	if got := read(); got != "67108864 3" {
		t.Errorf("the kernel's defaults have become %s", got)
	}
	if err := m.do(func() error { return m.network.Cleanup(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != "4194304 30" {
		t.Errorf("after the clean-up the node has %s", got)
	}
}
