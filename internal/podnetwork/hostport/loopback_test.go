package hostport

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// at is an address of this machine that nothing leaves: pods are at 127.0.0.2 here.
func at(ip string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port)
}

// pod answers each line and each datagram with its name in front. It returns the port that
// it has for both protocols.
func pod(t *testing.T, name string) uint16 {
	t.Helper()
	return podAt(t, "127.0.0.2", name)
}

// podAt is a pod at an address.
func podAt(t *testing.T, ip, name string) uint16 {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", at(ip, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		port := uint16(l.Addr().(*net.TCPAddr).Port)
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at(ip, port)))
		if err != nil {
			l.Close() // another program has it
			continue
		}
		t.Cleanup(func() { l.Close(); c.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					all, _ := io.ReadAll(conn)
					_, _ = conn.Write([]byte(name + " " + string(all)))
				}()
			}
		}()
		go func() {
			buf := make([]byte, 1500)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = c.WriteTo([]byte(name+" "+string(buf[:n])), from)
			}
		}()
		return port
	}
	t.Fatal("no port is free for both protocols")
	return 0
}

// own returns an address of this test alone, so that no other program has a port there.
func own() netip.AddrPort {
	n := owned.Add(1)
	pid := os.Getpid()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1 + byte(n), byte(pid >> 8), byte(pid)}), 8080)
}

var owned atomic.Int32

// ask sends a text, ends its direction, and returns the answer. It sends a datagram again until the answer comes.
func ask(t *testing.T, network string, to netip.AddrPort, text string) string {
	t.Helper()
	c, err := net.Dial(network, to.String())
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte(text)); err != nil {
		return err.Error()
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
		all, err := io.ReadAll(c)
		if err != nil {
			return err.Error()
		}
		return string(all)
	}
	// A datagram that meets a change of the port is lost. Like other clients of UDP, ask sends it again.
	buf := make([]byte, 1500)
	for end := time.Now().Add(patience); ; {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := c.Read(buf)
		switch {
		case err == nil:
			return string(buf[:n])
		case !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end):
			return err.Error()
		}
		if _, err := c.Write([]byte(text)); err != nil {
			return err.Error()
		}
	}
}

// TestLoopback: connections and datagrams of the node's own processes reach the pod; when
// the port leads elsewhere the old connections end, and when it goes nobody answers.
func TestLoopback(t *testing.T) {
	one, two, at1 := at("127.0.0.2", pod(t, "one")), at("127.0.0.2", pod(t, "two")), own()
	l := NewLoopback(slog.New(slog.DiscardHandler), "hostPort")
	defer l.Close()
	tcp, udp := service.Key{Addr: at1, Proto: api.TCP}, service.Key{Addr: at1, Proto: api.UDP}
	l.Serve(backends(map[service.Key]netip.AddrPort{tcp: one, udp: one, {Addr: at1, Proto: api.SCTP}: one}))
	for _, network := range []string{"tcp", "udp"} {
		if got := ask(t, network, at1, "hello"); got != "one hello" {
			t.Errorf("%s: %q", network, got)
		}
	}
	open, err := net.Dial("tcp", at1.String())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.Write([]byte("half a line")); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, "tcp", at1, ""); got != "one " { // so that the one before has come to its pod
		t.Fatalf("%q", got)
	}
	l.Serve(backends(map[service.Key]netip.AddrPort{tcp: two, udp: two}))
	_ = open.SetDeadline(time.Now().Add(patience))
	if n, err := open.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a connection to the pod before lives on: %d %v", n, err)
	}
	for _, network := range []string{"tcp", "udp"} {
		if got := ask(t, network, at1, "hello"); got != "two hello" {
			t.Errorf("%s: %q", network, got)
		}
	}
	l.Serve(nil)
	for _, network := range []string{"tcp", "udp"} {
		if got := ask(t, network, at1, "hello"); !strings.Contains(got, "refused") {
			t.Errorf("%s without a port: %q", network, got)
		}
	}
}

// TestLoopbackInUse: a port that another program has is said once, and served when it is free.
func TestLoopbackInUse(t *testing.T) {
	var log strings.Builder
	l := NewLoopback(slog.New(slog.NewTextHandler(&log, nil)), "hostPort")
	defer l.Close()
	to := own()
	taken, err := net.Listen("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	want := map[service.Key]netip.AddrPort{{Addr: to, Proto: api.TCP}: at("127.0.0.2", pod(t, "pod"))}
	l.Serve(backends(want))
	l.Serve(backends(want))
	if n := strings.Count(log.String(), "address already in use"); n != 1 {
		t.Errorf("said %d times: %s", n, &log)
	}
	taken.Close()
	l.Serve(backends(want))
	if got := ask(t, "tcp", to, "hello"); got != "pod hello" {
		t.Errorf("after the other program ended: %q", got)
	}
}

// TestLoopbackBound: what the node's processes open is bounded; more is reset at once.
func TestLoopbackBound(t *testing.T) {
	at1 := own()
	l := NewLoopback(slog.New(slog.DiscardHandler), "hostPort")
	l.slots = make(chan struct{}, 2)
	defer l.Close()
	l.Serve(backends(map[service.Key]netip.AddrPort{{Addr: at1, Proto: api.TCP}: at("127.0.0.2", pod(t, "pod"))}))
	var held []net.Conn
	for range 2 {
		c, err := net.Dial("tcp", at1.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	for len(l.slots) < 2 {
		time.Sleep(time.Millisecond)
	}
	if got := ask(t, "tcp", at1, "hello"); !strings.Contains(got, "reset") && !strings.Contains(got, "broken pipe") {
		t.Errorf("a connection too many: %q", got)
	}
	held[0].Close()
	for len(l.slots) == 2 {
		time.Sleep(time.Millisecond)
	}
	if got := ask(t, "tcp", at1, "hello"); got != "pod hello" {
		t.Errorf("after one ended: %q", got)
	}
}
