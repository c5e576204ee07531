package nftables

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// The kernel here has no sockets for SCTP: these are its packets in raw ones.

// rawSocket opens one for SCTP in a host.
func rawSocket(t *testing.T, h *testnet.Host, a netip.Addr) net.PacketConn {
	t.Helper()
	if a.Is4() {
		return rawSocketOf(t, h, "ip4:132", a)
	}
	return rawSocketOf(t, h, "ip6:132", a)
}

// rawSocketOf opens one for a network of package net.
func rawSocketOf(t *testing.T, h *testnet.Host, network string, a netip.Addr) (c net.PacketConn) {
	t.Helper()
	err := h.Do(func() (err error) {
		c, err = net.ListenPacket(network, a.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// An arrivals has the source ports of packets that came.
type arrivals struct {
	sync.Mutex
	ports map[uint16]bool
}

func (a *arrivals) read(c net.PacketConn) {
	b := make([]byte, 1500)
	for {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		if n >= 4 {
			a.Lock()
			a.ports[binary.BigEndian.Uint16(b)] = true
			a.Unlock()
		}
	}
}

func (a *arrivals) has(port uint16) bool {
	a.Lock()
	defer a.Unlock()
	return a.ports[port]
}

// probeSCTP sends packets, each from another port, and compares which come.
func (c *cluster) probeSCTP(t *testing.T, packets []networkpolicy.Packet) {
	t.Helper()
	came := &arrivals{ports: map[uint16]bool{}}
	sockets := map[netip.Addr]net.PacketConn{}
	var reading sync.WaitGroup
	defer reading.Wait()
	for _, p := range packets {
		for _, a := range []netip.Addr{p.Src, p.Dst} {
			if sockets[a] == nil {
				s := rawSocket(t, c.hosts[a], a)
				defer s.Close()
				sockets[a] = s
				reading.Go(func() { came.read(s) })
			}
		}
	}
	first := c.sctpPort
	for _, p := range packets {
		if _, err := sockets[p.Src].WriteTo(testnet.SCTPInit(c.sctpPort, p.Port), &net.IPAddr{IP: p.Dst.AsSlice()}); err != nil {
			t.Fatal(err)
		}
		c.sctpPort++
	}
	silent := time.Now().Add(testnet.Patience)
	for i, p := range packets {
		want, port := c.expect(t, p), first+uint16(i)
		until := silent
		if want {
			until = time.Now().Add(20 * time.Second)
		}
		for time.Now().Before(until) && !came.has(port) {
			time.Sleep(5 * time.Millisecond)
		}
		if got := came.has(port); got != want {
			t.Errorf("%v: allowed %v, and came %v", p, want, got)
		}
	}
}
