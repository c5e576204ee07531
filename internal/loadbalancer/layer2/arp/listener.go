package arp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// A listener has the raw sockets of one network interface.
type listener struct {
	name   string
	index  int
	mac    MAC
	source netip.Addr          // of IPv6 packets
	frames []*os.File          // AF_PACKET sockets: for ARP, and for neighbour discovery
	group  int                 // an IPv6 socket that joins multicast groups; -1: the node has no IPv6
	joined map[netip.Addr]bool // groups
}

// neighbourFilter passes ARP, neighbour solicitations and neighbour advertisements.
var neighbourFilter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: etherARP, Jt: 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: etherIPv6, Jf: 6},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: icmp6, Jf: 4},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 14 + 40},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: icmp6NS, Jt: 1},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: icmp6NA, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 2048},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// listen opens the sockets of an interface.
func listen(on link) (*listener, error) {
	l := &listener{name: on.Name, index: on.index, mac: on.mac, source: on.source, group: -1, joined: map[netip.Addr]bool{}}
	var err error
	for _, proto := range []uint16{unix.ETH_P_ARP, unix.ETH_P_IPV6} {
		f, failed := openFrames(on, proto)
		if failed != nil {
			err = failed
			break
		}
		l.frames = append(l.frames, f)
	}
	if err == nil {
		l.group, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			l.group, err = -1, nil
		}
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("listen on interface %s: %w", on.Name, err)
	}
	return l, nil
}

// openFrames opens a socket for the frames of a protocol. The socket has its filter before it is bound, so that it
// receives no other frame.
func openFrames(on link, proto uint16) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w [needs CAP_NET_RAW]", err)
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(neighbourFilter)), Filter: &neighbourFilter[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: numbers.NetworkOrder(proto), Ifindex: on.index})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "packet "+on.Name), nil
}

// send sends a frame through the socket of its protocol, because the fence looks at the socket's protocol.
func (l *listener) send(frame []byte) error {
	f := l.frames[0]
	if binary.BigEndian.Uint16(frame[12:]) == etherIPv6 {
		f = l.frames[1]
	}
	_, err := f.Write(frame)
	return err
}

func (l *listener) close() {
	for _, f := range l.frames {
		_ = f.Close()
	}
	if l.group >= 0 {
		_ = unix.Close(l.group)
	}
}

// join joins the multicast groups of the addresses, and leaves all other groups.
func (l *listener) join(addrs []netip.Addr) error {
	want := map[netip.Addr]bool{}
	var failed error
	for _, a := range addrs {
		if a.Is6() && l.group >= 0 {
			want[solicitedNode(a)] = true
		}
	}
	for g := range want {
		if l.joined[g] {
			continue
		}
		m := &unix.IPv6Mreq{Multiaddr: g.As16(), Interface: uint32(l.index)}
		if err := unix.SetsockoptIPv6Mreq(l.group, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, m); err != nil {
			failed = fmt.Errorf("join multicast group %v on %s: %w", g, l.name, err)
			continue
		}
		l.joined[g] = true
	}
	for g := range l.joined {
		if !want[g] {
			m := &unix.IPv6Mreq{Multiaddr: g.As16(), Interface: uint32(l.index)}
			_ = unix.SetsockoptIPv6Mreq(l.group, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, m) // the interface may be gone
			delete(l.joined, g)
		}
	}
	return failed
}
