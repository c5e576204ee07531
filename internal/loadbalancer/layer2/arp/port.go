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

// A port is the sockets of one interface.
type port struct {
	name   string
	index  int
	mac    MAC
	source netip.Addr // for IPv6
	frames []*os.File // AF_PACKET: frames of ARP, and of neighbour discovery
	group  int        // an IPv6 socket that joins multicast groups
	joined map[netip.Addr]bool
}

// neighbourFilter lets through ARP, and neighbour solicitations and advertisements.
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

// openPort opens the sockets of an interface.
func openPort(l link) (*port, error) {
	p := &port{name: l.Name, index: l.index, mac: l.mac, source: l.source, group: -1, joined: map[netip.Addr]bool{}}
	var err error
	for _, proto := range []uint16{unix.ETH_P_ARP, unix.ETH_P_IPV6} {
		f, failed := openFrames(l, proto)
		if failed != nil {
			err = failed
			break
		}
		p.frames = append(p.frames, f)
	}
	if err == nil {
		p.group, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			p.group, err = -1, nil // a node without IPv6
		}
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("listen on interface %s: %w", l.Name, err)
	}
	return p, nil
}

// openFrames opens a socket for the frames of a protocol. It has its filter before it is
// bound, so that no other frame comes.
func openFrames(l link, proto uint16) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w [needs CAP_NET_RAW]", err)
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(neighbourFilter)), Filter: &neighbourFilter[0]})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: numbers.NetworkOrder(proto), Ifindex: l.index})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "packet "+l.Name), nil
}

// send sends a frame, by the socket of its protocol: the fence looks at what the socket says.
func (p *port) send(frame []byte) error {
	f := p.frames[0]
	if binary.BigEndian.Uint16(frame[12:]) == etherIPv6 {
		f = p.frames[1]
	}
	_, err := f.Write(frame)
	return err
}

func (p *port) close() {
	for _, f := range p.frames {
		_ = f.Close()
	}
	if p.group >= 0 {
		_ = unix.Close(p.group)
	}
}

// join joins the multicast groups of the addresses and leaves others.
func (p *port) join(addrs []netip.Addr) error {
	want := map[netip.Addr]bool{}
	var failed error
	for _, a := range addrs {
		if a.Is6() && p.group >= 0 {
			want[solicitedNode(a)] = true
		}
	}
	for g := range want {
		if p.joined[g] {
			continue
		}
		m := &unix.IPv6Mreq{Multiaddr: g.As16(), Interface: uint32(p.index)}
		if err := unix.SetsockoptIPv6Mreq(p.group, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, m); err != nil {
			failed = fmt.Errorf("join multicast group %v on %s: %w", g, p.name, err)
			continue
		}
		p.joined[g] = true
	}
	for g := range p.joined {
		if !want[g] {
			m := &unix.IPv6Mreq{Multiaddr: g.As16(), Interface: uint32(p.index)}
			_ = unix.SetsockoptIPv6Mreq(p.group, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, m) // it may be gone with the interface
			delete(p.joined, g)
		}
	}
	return failed
}
