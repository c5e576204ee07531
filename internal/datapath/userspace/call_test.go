package userspace_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// One socket of a client sends over UDP to a Service and directly to its endpoint, in turns. Each answers with its own
// address. (TestConformance/same-port covers TCP.)
func TestOneSocket(t *testing.T) {
	r := newRig(t, 1)
	r.pods[0].Serve("udp", r.at(0))
	r.sync(r.service(api.UDP, 0))
	var c net.PacketConn
	must(t, r.client.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", ":40000")
		return err
	}))
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	buf := make([]byte, 200)
	for range 3 {
		for _, to := range []netip.AddrPort{vip, r.at(0)} {
			_, err := c.WriteTo([]byte("who?\n"), net.UDPAddrFromAddrPort(to))
			must(t, err)
			n, from, err := c.ReadFrom(buf)
			must(t, err)
			if from.String() != to.String() {
				t.Errorf("%v was asked, and %v answered: %s", to, from, buf[:n])
			}
			if saw := fmt.Sprintf("saw %v:", r.client.Addr(true)); !strings.Contains(string(buf[:n]), saw) {
				t.Errorf("%v: %q, want that it %s", to, buf[:n], saw)
			}
		}
	}
}

// A client keeps the source port that it has bound: NFS servers require a port below 1024.
func TestAskedPort(t *testing.T) {
	r := newRig(t, 1)
	r.pods[0].Serve("tcp", r.at(0))
	r.sync(r.service(api.TCP, 0))
	var c net.Conn
	must(t, r.client.Do(func() (err error) {
		d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{Port: 900}}
		c, err = d.Dial("tcp4", vip.String())
		return err
	}))
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	buf := make([]byte, 200)
	n, err := c.Read(buf)
	must(t, err)
	if want := fmt.Sprintf("saw %v:900\n", r.client.Addr(true)); !strings.HasSuffix(string(buf[:n]), want) {
		t.Errorf("%q, want %q", buf[:n], want)
	}
	if got := r.client.Ask("tcp", vip, patience); got.Outcome != testnet.Answered || got.Seen.Port() >= 32768 {
		t.Errorf("%v, want a port that no kernel gives", got)
	}
}
