package hostport

import (
	"context"
	"errors"
	"fmt"
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

// nodePorts serves the NodePorts of tables on a loopback address until the test ends.
type nodePorts struct {
	table   atomic.Pointer[service.Table]
	changed chan struct{}
}

func serveNodePorts(t *testing.T, hostPorts func() map[service.Key]netip.AddrPort, addrs ...netip.Addr) *nodePorts {
	t.Helper()
	s := &nodePorts{changed: make(chan struct{}, 1)}
	n := &NodePorts{Log: slog.New(slog.DiscardHandler), Addrs: addrs, Table: s.table.Load, Changed: s.changed, HostPorts: hostPorts}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *nodePorts) set(frontends ...*service.Frontend) {
	s.table.Store(service.NewTable(service.Settings{}, frontends))
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// nodePort is a NodePort of IPv4 whose connections to retained endpoints go on.
func nodePort(proto api.Proto, port uint16, affinity time.Duration, retained []netip.AddrPort, to ...netip.AddrPort) *service.Frontend {
	r := &service.Route{}
	for _, a := range to {
		r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: a})
	}
	if len(to) == 0 {
		r.Action = service.Reject
	}
	return &service.Frontend{
		Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), port), Proto: proto, Service: api.PortName{Name: api.Name{Name: "s"}, Port: fmt.Sprint(proto)},
		Internal: r, External: &service.Route{Action: service.Drop}, Affinity: affinity, Retained: retained,
	}
}

// eventually waits for what must come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v: %s", patience, what)
		}
	}
}

// TestNodePorts: TCP and UDP at a loopback address come to the endpoints that clients on the node have;
// with affinity to one of them; when it goes, to another one, and its connections end.
func TestNodePorts(t *testing.T) {
	one, two := at("127.0.0.2", pod(t, "one")), at("127.0.0.2", pod(t, "two"))
	at1 := own()
	s := serveNodePorts(t, nil, at1.Addr(), netip.IPv6Loopback())
	port := at1.Port()
	s.set(nodePort(api.TCP, port, 0, nil, one, two), nodePort(api.UDP, port, 0, nil, one, two))
	for _, network := range []string{"tcp", "udp"} {
		seen := map[string]bool{}
		eventually(t, network+" to both endpoints", func() bool {
			answer := ask(t, network, at1, "hello")
			if strings.HasSuffix(answer, " hello") {
				seen[answer] = true
			}
			return seen["one hello"] && seen["two hello"]
		})
	}

	s.set(nodePort(api.TCP, port, time.Hour, nil, one, two), nodePort(api.UDP, port, 0, nil, two))
	eventually(t, "UDP to the endpoint that is left", func() bool { return ask(t, "udp", at1, "x") == "two x" })
	var first string
	eventually(t, "with affinity a client stays", func() bool { // its port may change after the other's
		first = ask(t, "tcp", at1, "")
		for range 20 {
			if ask(t, "tcp", at1, "") != first {
				return false
			}
		}
		return true
	})

	gone, stays := one, two
	if strings.HasPrefix(first, "two") {
		gone, stays = two, one
	}
	open, err := net.Dial("tcp", at1.String())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.Write([]byte("on ")); err != nil { // it has an endpoint when a later one has
		t.Fatal(err)
	}
	if got := ask(t, "tcp", at1, ""); got != first {
		t.Fatalf("%q after %q", got, first)
	}
	s.set(nodePort(api.TCP, port, time.Hour, []netip.AddrPort{gone}, stays))
	eventually(t, "new connections have another endpoint", func() bool { a := ask(t, "tcp", at1, ""); return a != first && len(a) < 10 })
	_ = open.SetDeadline(time.Now().Add(patience))
	if _, err := open.Write([]byte("and on")); err != nil {
		t.Errorf("the connection to an endpoint that drains: %v", err)
	}
	s.set(nodePort(api.TCP, port, time.Hour, nil, stays))
	if answer, err := io.ReadAll(open); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection to an endpoint that has gone goes on: %q, %v", answer, err)
	}

	s.set(nodePort(api.TCP, port, 0, nil))
	eventually(t, "a port without endpoints refuses", func() bool {
		conn, err := net.Dial("tcp", at1.String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
}

// TestNodePortsIPv6: TCP and UDP at ::1 come to endpoints of IPv6, with affinity to one of them; SCTP is not served, and
// nothing of IPv6 is at 127.0.0.1.
func TestNodePortsIPv6(t *testing.T) {
	one, two := at("::1", podAt(t, "::1", "one")), at("::1", podAt(t, "::1", "two"))
	at4 := own()
	s := serveNodePorts(t, nil, at4.Addr(), netip.IPv6Loopback())
	ipv6 := func(f *service.Frontend, port uint16) *service.Frontend {
		f.Addr = netip.AddrPortFrom(netip.IPv6Unspecified(), port)
		return f
	}
	var at6 netip.AddrPort
	both := func(network string) bool {
		seen := map[string]bool{}
		for range 200 { // or another program has the port
			if seen[ask(t, network, at6, "hello")] = true; seen["one hello"] && seen["two hello"] {
				return true
			}
			time.Sleep(5 * time.Millisecond)
		}
		return false
	}
	eventually(t, "TCP and UDP to both endpoints", func() bool {
		l, err := net.Listen("tcp6", "[::1]:0")
		if err != nil {
			t.Fatal(err)
		}
		at6 = l.Addr().(*net.TCPAddr).AddrPort()
		l.Close()
		port := at6.Port()
		s.set(ipv6(nodePort(api.TCP, port, 0, nil, one, two), port), ipv6(nodePort(api.UDP, port, 0, nil, one, two), port), ipv6(nodePort(api.SCTP, port, 0, nil, one), port))
		return both("tcp") && both("udp")
	})
	if conn, err := net.Dial("tcp", netip.AddrPortFrom(at4.Addr(), at6.Port()).String()); err == nil {
		conn.Close()
		t.Error("a NodePort of IPv6 is at 127.0.0.1")
	}
	s.set(ipv6(nodePort(api.TCP, at6.Port(), time.Hour, nil, one, two), at6.Port()))
	eventually(t, "affinity counts", func() bool { // the table before has none
		first := ask(t, "tcp", at6, "")
		for range 40 {
			if ask(t, "tcp", at6, "") != first {
				return false
			}
		}
		return true
	})
}

// TestNodePortsBehindHostPorts: a hostPort on the same address comes first.
func TestNodePortsBehindHostPorts(t *testing.T) {
	at1, to := own(), at("127.0.0.2", pod(t, "service"))
	k := service.Key{Addr: at1, Proto: api.TCP}
	n := &NodePorts{Addrs: []netip.Addr{at1.Addr()}, HostPorts: func() map[service.Key]netip.AddrPort { return map[service.Key]netip.AddrPort{k: to} }}
	table := service.NewTable(service.Settings{}, []*service.Frontend{nodePort(api.TCP, at1.Port(), 0, nil, to), nodePort(api.UDP, at1.Port(), 0, nil, to)})
	got := n.wanted(table)
	if _, ok := got[k]; ok || len(got) != 1 {
		t.Errorf("NodePorts beside a hostPort: %v", got)
	}
}
