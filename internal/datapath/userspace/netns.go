package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netns"
)

// A netNamespace is the network namespace in which all goroutines open sockets.
type netNamespace struct {
	ns vnetns.NsHandle // None: the namespace of the process
}

// currentNamespace returns the network namespace of the calling thread.
func currentNamespace() (*netNamespace, error) {
	mine, err := vnetns.Get()
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	// A goroutine that is not locked to a thread is in the process's namespace.
	type answer struct {
		ns  vnetns.NsHandle
		err error
	}
	others := make(chan answer)
	go func() {
		ns, err := vnetns.Get()
		others <- answer{ns, err}
	}()
	a := <-others
	if a.err != nil {
		_ = mine.Close()
		return nil, fmt.Errorf("open network namespace: %w", a.err)
	}
	defer a.ns.Close()
	if mine.Equal(a.ns) {
		_ = mine.Close()
		return &netNamespace{vnetns.None()}, nil
	}
	return &netNamespace{mine}, nil
}

// do runs f on a thread in the namespace.
func (p *netNamespace) do(f func() error) error {
	if !p.ns.IsOpen() {
		return f()
	}
	return netns.Do(p.ns, f)
}

func (p *netNamespace) close() {
	if p.ns.IsOpen() {
		_ = p.ns.Close()
	}
}

// Keepalive detects dead peers: it sends probes after 15 s of silence, at most nine. Connections inherit it from the
// listener.
const keepIdle, keepEvery, keepCount = 15, 15, 9

// option returns the function that sets options of a socket before it is bound.
func option(set ...func(fd int) error) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			for _, f := range set {
				if err = f(int(fd)); err != nil {
					return
				}
			}
		}); e != nil {
			return e
		}
		return err
	}
}

// transparent allows a socket to have an address that is not the node's. It also identifies our own packets.
func transparent(is4 bool) func(int) error {
	return func(fd int) error {
		if is4 {
			return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		}
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
}

func reuse(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }

// destination makes the kernel add to each datagram the address that the client called.
func destination(is4 bool) func(int) error {
	return func(fd int) error {
		if is4 {
			return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVORIGDSTADDR, 1)
		}
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVORIGDSTADDR, 1)
	}
}

func keepAlive(fd int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPIDLE, keepIdle),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPINTVL, keepEvery),
		unix.SetsockoptInt(fd, unix.SOL_TCP, unix.TCP_KEEPCNT, keepCount),
	)
}

// networkName returns Go's name of a network, for example "tcp4".
func networkName(proto string, is4 bool) string {
	if is4 {
		return proto + "4"
	}
	return proto + "6"
}

// loopback returns the address of a listener. Other hosts cannot reach it.
func loopback(is4 bool, port uint16) netip.AddrPort {
	if is4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), port)
}

func (p *netNamespace) listenTCP(ctx context.Context, at netip.AddrPort) (l *net.TCPListener, err error) {
	is4 := at.Addr().Is4()
	c := net.ListenConfig{KeepAlive: -1, Control: option(transparent(is4), keepAlive)}
	c.SetMultipathTCP(false) // its connections could not be spliced
	err = p.do(func() error {
		all, err := c.Listen(ctx, networkName("tcp", is4), at.String())
		if err == nil {
			l = all.(*net.TCPListener)
		}
		return err
	})
	return l, err
}

func (p *netNamespace) listenUDP(ctx context.Context, at netip.AddrPort) (*net.UDPConn, error) {
	is4 := at.Addr().Is4()
	return p.packets(ctx, at, option(transparent(is4), destination(is4), receiveHops(is4)))
}

// replies opens the socket that answers a frontend's clients from the frontend's address. The socket is connected to
// port 1 of a loopback address. Otherwise the kernel would deliver datagrams for the frontend to it. Nobody would read
// them, even if the node must reject them or another mechanism translates them.
func (p *netNamespace) replies(ctx context.Context, at netip.AddrPort) (*net.UDPConn, error) {
	is4 := at.Addr().Is4()
	c, err := p.packets(ctx, at, option(transparent(is4), reuse))
	if err != nil {
		return nil, err
	}
	var unusedPeer unix.Sockaddr = &unix.SockaddrInet6{Addr: loopback(is4, 0).Addr().As16(), Port: 1}
	if is4 {
		unusedPeer = &unix.SockaddrInet4{Addr: loopback(is4, 0).Addr().As4(), Port: 1}
	}
	raw, err := c.SyscallConn()
	if err == nil {
		e := raw.Control(func(fd uintptr) { err = unix.Connect(int(fd), unusedPeer) })
		err = errors.Join(err, e)
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect reply socket: %w", err)
	}
	return c, nil
}

func (p *netNamespace) packets(ctx context.Context, at netip.AddrPort, control func(string, string, syscall.RawConn) error) (pc *net.UDPConn, err error) {
	c := net.ListenConfig{Control: control}
	err = p.do(func() error {
		all, err := c.ListenPacket(ctx, networkName("udp", at.Addr().Is4()), at.String())
		if err == nil {
			pc = all.(*net.UDPConn)
		}
		return err
	})
	return pc, err
}
