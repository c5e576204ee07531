package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Unnumbered sessions find the router on a link by router advertisements (RFC 4861), as FRR does: each end advertises
// itself and learns the other end's link-local address.
const (
	routerAdvertisement = 134
	// advertiseInterval is the time between two advertisements of this node. After routerTimeout without an advertisement
	// another router on the link can take a router's place.
	advertiseInterval, routerTimeout = 5 * time.Second, 30 * time.Second
)

var allNodes = netip.MustParseAddr("ff02::1")

// A neighbours finds the routers behind interfaces. Its methods may be called by any goroutine.
type neighbours struct {
	log    *slog.Logger
	notify func()

	mu       sync.Mutex
	byDevice map[string]*neighbour
	done     sync.WaitGroup
}

// A neighbour is the router behind an interface.
type neighbour struct {
	stop     func()
	addr     netip.Addr // with the interface as zone
	lastSeen time.Time
}

// set replaces the interfaces behind which to look for a router, until ctx ends.
func (n *neighbours) set(ctx context.Context, devices map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for device, one := range n.byDevice {
		if !devices[device] {
			one.stop()
			delete(n.byDevice, device)
		}
	}
	for device := range devices {
		if n.byDevice[device] != nil {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		one := &neighbour{stop: stop}
		n.byDevice[device] = one
		n.done.Go(func() { n.discover(ctx, device, one) })
	}
}

// router returns the address of the router behind an interface; invalid: no router was heard.
func (n *neighbours) router(device string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if one := n.byDevice[device]; one != nil {
		return one.addr
	}
	return netip.Addr{}
}

// discover runs discoverOnce again and again until ctx ends.
func (n *neighbours) discover(ctx context.Context, device string, one *neighbour) {
	var logged string
	for ctx.Err() == nil {
		err := n.discoverOnce(ctx, device, one)
		if err != nil && ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			n.log.Warn("cannot find a router behind an interface, will try again", "interface", device, "err", err, "again", retryPause)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryPause):
		}
	}
}

// discoverOnce sends router advertisements and receives the router's, until its socket fails or ctx ends.
func (n *neighbours) discoverOnce(ctx context.Context, device string, one *neighbour) error {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	conn, err := listenICMP(ctx, link)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	to := &net.IPAddr{IP: allNodes.AsSlice(), Zone: device}
	data, control := make([]byte, 1500), make([]byte, 64)
	for next := time.Now(); ; {
		if wait := time.Until(next); wait <= 0 {
			if _, err := conn.WriteTo(advertisement(link), to); err != nil {
				return fmt.Errorf("send a router advertisement: %w", err)
			}
			next = time.Now().Add(advertiseInterval)
		}
		if err := conn.SetReadDeadline(next); err != nil {
			return err
		}
		length, flags, _, from, err := conn.ReadMsgIP(data, control)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return err
		}
		if a, _ := netip.AddrFromSlice(from.IP); length >= 16 && data[0] == routerAdvertisement && a.IsLinkLocalUnicast() && hopLimitOf(control[:flags]) == hopLimit && !isOwn(link, a) {
			n.noteRouter(one, a.WithZone(device))
		}
	}
}

// noteRouter records a router's advertisement. If there are several routers, the first one counts until it is silent for
// routerTimeout.
func (n *neighbours) noteRouter(one *neighbour, a netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if one.addr == a {
		one.lastSeen = now
		return
	}
	if !one.addr.IsValid() || now.Sub(one.lastSeen) > routerTimeout {
		one.addr, one.lastSeen = a, now
		n.notify()
	}
}

// isOwn reports whether the interface has an address.
func isOwn(link *net.Interface, a netip.Addr) bool {
	all, err := link.Addrs()
	for _, own := range all {
		if p, bad := netip.ParsePrefix(own.String()); bad == nil && p.Addr() == a {
			return true
		}
	}
	return err != nil
}

// advertisement returns a router advertisement with lifetime 0, so that no machine takes this node for its router. The
// kernel adds the checksum.
func advertisement(link *net.Interface) []byte {
	message := make([]byte, 16, 24)
	message[0] = routerAdvertisement
	if len(link.HardwareAddr) == 6 {
		message = append(append(message, 1, 1), link.HardwareAddr...)
	}
	return message
}

// listenICMP opens an ICMPv6 socket on a link.
func listenICMP(ctx context.Context, link *net.Interface) (*net.IPConn, error) {
	var failed error
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		err := c.Control(func(fd uintptr) {
			set := func(option, value int) {
				failed = errors.Join(failed, unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, option, value))
			}
			failed = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link.Name)
			set(unix.IPV6_MULTICAST_IF, link.Index)
			set(unix.IPV6_MULTICAST_HOPS, hopLimit)
			set(unix.IPV6_MULTICAST_LOOP, 0)
			set(unix.IPV6_RECVHOPLIMIT, 1)
			failed = errors.Join(failed, unix.SetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: allNodes.As16(), Interface: uint32(link.Index)}))
		})
		return errors.Join(err, failed)
	}}
	conn, err := lc.ListenPacket(ctx, "ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, fmt.Errorf("open a socket of ICMPv6: %w [needs CAP_NET_RAW]", err)
	}
	return conn.(*net.IPConn), nil
}

// hopLimitOf returns the hop limit of a received packet, which each router on the way lowers; 0: unknown.
func hopLimitOf(control []byte) int {
	all, _ := unix.ParseSocketControlMessage(control)
	for _, m := range all {
		if m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT && len(m.Data) >= 4 {
			return int(m.Data[0])
		}
	}
	return 0
}
