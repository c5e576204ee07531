package ebpf_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A rig is a node with a pod that is a client, a namespace that is no pod, and two endpoints.
type rig struct {
	t                      testing.TB
	net                    *testnet.Net
	node, client, stranger *testnet.Host
	endpoints              []netip.AddrPort
	endpoints6             []netip.AddrPort
	pods                   []*testnet.Host // of the endpoints
	cgroup                 string
	dp                     conformance.Datapath
}

func newRig(t testing.TB) *rig {
	n := testnet.New(t)
	r := &rig{t: t, net: n, node: n.Node("node-1")}
	r.client = n.Pod(r.node, "client", netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:10:244:1::5"))
	r.stranger = n.Pod(r.node, "stranger", netip.MustParseAddr("10.244.1.6"))
	for i := range 2 {
		at4, at6 := netip.MustParseAddr(fmt.Sprintf("10.244.1.1%d", i)), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:1::1%d", i))
		pod := n.Pod(r.node, fmt.Sprintf("pod-%d", i), at4, at6)
		r.endpoints = append(r.endpoints, netip.AddrPortFrom(at4, 8080))
		r.endpoints6 = append(r.endpoints6, netip.AddrPortFrom(at6, 8080))
		r.pods = append(r.pods, pod)
		pod.Serve("tcp", r.endpoints[i])
		pod.Serve("tcp", r.endpoints6[i])
	}
	r.cgroup = r.node.Cgroup()
	r.client.CgroupIn(testnet.MakeCgroupNamed(t, r.cgroup, "kubepods"))
	r.reopen()
	t.Cleanup(func() { r.dp.Close() })
	return r
}

// reopen is a restart of the agent.
func (r *rig) reopen() {
	if r.dp != nil {
		r.dp.Close()
	}
	r.dp = open(r.t)
	r.dp.(conformance.Placed).Place(r.cgroup)
}

func (r *rig) do(f func() error) {
	r.t.Helper()
	if err := r.node.Do(f); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) sync(all ...*service.Frontend) {
	r.t.Helper()
	want := service.NewTable(service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}}, all)
	r.do(func() error { _, err := r.dp.Sync(context.Background(), want); return err })
}

// front returns a Service with the rig's endpoints.
func (r *rig) front(addr string) *service.Frontend {
	at, route := netip.MustParseAddrPort(addr), &service.Route{Action: service.Forward}
	ends := r.endpoints
	if at.Addr().Is6() {
		ends = r.endpoints6
	}
	for _, e := range ends {
		route.Endpoints = append(route.Endpoints, service.Endpoint{Addr: e, Local: true})
	}
	return &service.Frontend{Addr: at, Proto: api.TCP, ClusterIP: true, Internal: route, External: route,
		Service: api.PortName{Name: api.Name{Namespace: "default", Name: "svc-" + at.Addr().String()}}}
}

// onlyConnectTime removes the rules of nf_tables, so that only translated sockets reach an endpoint.
func (r *rig) onlyConnectTime() {
	r.do(func() error { return nft.New(numbers.TableEBPF).Delete(context.Background()) })
}

var (
	web  = netip.MustParseAddrPort("10.96.0.1:80")
	web6 = netip.MustParseAddrPort("[fd00:10:96::1]:80")
)

// translated reports whether f reaches an endpoint.
func (r *rig) translated(name string, want bool, h *testnet.Host, f func(*net.Dialer) (net.Conn, error)) {
	r.t.Helper()
	err := h.Do(func() error {
		c, err := f(&net.Dialer{Timeout: 300 * time.Millisecond})
		if err == nil {
			c.Close()
		}
		return err
	})
	if (err == nil) != want {
		r.t.Errorf("%s: translated %v, want %v: %v", name, err == nil, want, err)
	}
}

func dial(to netip.AddrPort) func(*net.Dialer) (net.Conn, error) {
	return func(d *net.Dialer) (net.Conn, error) {
		d.SetMultipathTCP(false)
		return d.Dial("tcp", to.String())
	}
}

// TestClients: who gets an endpoint at connect time.
func TestClients(t *testing.T) {
	r := newRig(t)
	f, f6 := r.front(web.String()), r.front(web6.String())
	masqueraded, limited, sticky := r.front("10.96.0.2:80"), r.front("10.96.0.3:80"), r.front("10.96.0.4:80")
	all := &service.Route{Action: service.Forward, Endpoints: f.Internal.Endpoints, Masquerade: service.MasqueradeAll}
	masqueraded.Internal, masqueraded.External = all, all
	limited.Sources = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	sticky.Affinity = time.Hour
	hashed, turns := r.front("10.96.0.5:80"), r.front("10.96.0.6:80")
	hashed.Balance, turns.Balance = service.SourceHash, service.RoundRobin
	destination := r.front("10.96.0.7:80")
	destination.Balance = service.DestHash
	none := r.front("10.96.0.8:80")
	none.Internal = &service.Route{Action: service.Reject}
	none.External = none.Internal
	r.sync(f, f6, masqueraded, limited, sticky, hashed, turns, destination, none)
	if got := r.client.Ask("tcp", none.Addr, testnet.Patience); got.Outcome != testnet.Refused {
		t.Errorf("a Service without endpoints: %v, want refused", got)
	}
	r.onlyConnectTime()

	r.translated("a pod", true, r.client, dial(web))
	r.translated("a pod, IPv6", true, r.client, dial(web6))
	r.translated("the node", true, r.node, dial(web))
	r.translated("a namespace that is no pod", false, r.stranger, dial(web))
	r.translated("a pod with round robin", true, r.client, dial(turns.Addr))
	r.translated("a pod with a hash of the destination", true, r.client, dial(destination.Addr))
	r.translated("a masqueraded pod", false, r.client, dial(masqueraded.Addr))
	r.translated("the node, masqueraded", true, r.node, dial(masqueraded.Addr))
	r.translated("a Service with source ranges", false, r.node, dial(limited.Addr))
	r.translated("a Service with affinity", false, r.node, dial(sticky.Addr))
	r.translated("a hash of the client", false, r.node, dial(hashed.Addr))
	r.translated("MPTCP", false, r.node, func(d *net.Dialer) (net.Conn, error) {
		d.SetMultipathTCP(true)
		return d.Dial("tcp", web.String())
	})
	r.translated("a bound socket", false, r.client, func(d *net.Dialer) (net.Conn, error) {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(10, 244, 1, 5)}
		return d.Dial("tcp", web.String())
	})
	r.translated("a socket with a port", false, r.client, func(d *net.Dialer) (net.Conn, error) {
		d.LocalAddr = &net.TCPAddr{Port: 4711}
		return d.Dial("tcp4", web.String())
	})
	for name, set := range map[string]func(fd int) error{
		"a socket with a mark":   func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 7) },
		"a socket with a device": func(fd int) error { return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0") },
	} {
		if err := r.client.Do(func() error { return connect(unix.AF_INET, &unix.SockaddrInet4{Port: 80, Addr: web.Addr().As4()}, set) }); err == nil {
			t.Errorf("%s was translated", name)
		}
	}
	mapped := &unix.SockaddrInet6{Port: 80, Addr: web.Addr().As16()}
	if err := r.client.Do(func() error { return connect(unix.AF_INET6, mapped, nil) }); err != nil {
		t.Errorf("an IPv4 address mapped into IPv6: %v", err)
	}
	r.meshed()
}

// meshed: a pod with a sidecar's listener is left to nf_tables.
func (r *rig) meshed() {
	var sidecar net.Listener
	err := r.client.Do(func() (err error) { sidecar, err = net.Listen("tcp4", "0.0.0.0:15001"); return err })
	if err != nil {
		r.t.Fatal(err)
	}
	defer sidecar.Close()
	r.translated("a pod of a mesh", false, r.client, dial(web))
}

// connect connects a socket within 300 ms, and compares its peer with the address.
func connect(family int, to unix.Sockaddr, set func(fd int) error) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if set != nil {
		if err := set(fd); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 300_000}); err != nil {
		return err
	}
	if err := unix.Connect(fd, to); err != nil {
		return os.NewSyscallError("connect", err)
	}
	peer, err := unix.Getpeername(fd)
	if is, want := addrPort(peer), addrPort(to); err == nil && is != want {
		err = fmt.Errorf("the peer is %v, want %v", is, want)
	}
	return err
}

func addrPort(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	}
	return netip.AddrPort{}
}

// TestLife: sockets keep their peer's name over a restart and a switch, and nothing is left after the last.
func TestLife(t *testing.T) {
	r := newRig(t)
	r.sync(r.front(web.String()))
	r.onlyConnectTime()
	var c net.Conn
	err := r.client.Do(func() (err error) { c, err = dial(web)(&net.Dialer{Timeout: time.Second}); return err })
	if err != nil {
		t.Fatal(err)
	}
	if c.RemoteAddr().String() != web.String() {
		t.Errorf("the peer is %v, want %v", c.RemoteAddr(), web)
	}
	r.dp.Close()
	r.translated("without an agent", true, r.client, dial(web))
	r.reopen()
	r.sync(r.front(web.String()))
	drain := func() (done bool) {
		r.do(func() (err error) { done, err = r.dp.Drain(context.Background()); return err })
		return done
	}
	if drain() {
		t.Error("drained while a translated socket is open")
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if peer, err := unix.Getpeername(int(fd)); err != nil || peer.(*unix.SockaddrInet4).Port != 80 {
			t.Errorf("the peer after a switch: %v, %v", peer, err)
		}
	})
	r.translated("after a switch", false, r.client, dial(web))
	c.Close()
	if !drain() {
		t.Error("not drained after the last translated socket closed")
	}
	if _, err := os.Stat(filepath.Join(bpffs(t, r.cgroup), "fairway")); !os.IsNotExist(err) {
		t.Errorf("pins are left: %v", err)
	}
}
