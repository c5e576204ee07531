package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/path/observe"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// linkPrefix begins the names of the links that inject makes, and linkAlias the text from which RemoveStale knows their age.
const (
	linkPrefix = "fwpath"
	linkAlias  = "fairway path "
)

// An injection lets the node receive a packet as if a client behind one of its links had sent it:
//
//	packet socket ─→ fwpath0 ═ veth ═ fwpath1 ─ ingress: u32, mirred ─→ ingress of the client's link
//
// The answer is seen where it leaves the node by the client's link.
type injection struct {
	target netlink.Link // of the client
	sender netlink.Link
	mac    net.HardwareAddr // of the other end
	in     int              // the socket on target
}

// inject sends the probe of an order from an address behind a link of the node.
func inject(ctx context.Context, o trace.Order, from netip.Addr) (trace.Heard, error) {
	name, err := observe.LinkTo(from)
	if err != nil {
		return trace.Heard{}, err
	}
	i := &injection{in: -1}
	if err := i.open(name, o.Run); err != nil {
		i.close()
		return trace.Heard{}, fmt.Errorf("inject a packet behind %s: %w [needs CAP_NET_ADMIN, CAP_NET_RAW, and the kernel's sch_ingress, cls_u32 and act_mirred]", name, err)
	}
	defer i.close()
	if err := only(i.in, from); err != nil {
		return trace.Heard{}, fmt.Errorf("filter what comes to %v: %w", from, err)
	}
	port := o.Port
	if port == 0 {
		port = uint16(32768 + rand.IntN(28000)) // as the kernel chooses one
	}
	client := netip.AddrPortFrom(from, port)
	if err := i.send(packet(o, client)); err != nil {
		return trace.Heard{}, fmt.Errorf("inject a packet behind %s: %w", name, err)
	}
	h := i.listen(ctx, o, client)
	h.Local, h.Injected = client, true
	return h, nil
}

// open makes the pair of links and the redirection, and the socket for the answer.
func (i *injection) open(name, run string) (err error) {
	if i.target, err = netlink.LinkByName(name); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = linkPrefix + run[:min(len(run), 7)] + "0"
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: linkPrefix + run[:min(len(run), 7)] + "1"}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("add a veth pair: %w", err)
	}
	i.sender = pair
	if err := netlink.LinkSetAlias(pair, linkAlias+time.Now().UTC().Format(time.RFC3339)); err != nil {
		return err
	}
	other, err := netlink.LinkByName(pair.PeerName)
	if err != nil {
		return err
	}
	i.mac = other.Attrs().HardwareAddr
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: other.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil {
		return fmt.Errorf("add clsact: %w", err)
	}
	filter := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: other.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL},
		Actions: []netlink.Action{&netlink.MirredAction{
			ActionAttrs: netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN}, MirredAction: netlink.TCA_INGRESS_REDIR, Ifindex: i.target.Attrs().Index,
		}},
	}
	if err := netlink.FilterAdd(filter); err != nil {
		return fmt.Errorf("add the redirection: %w", err)
	}
	if err := errors.Join(netlink.LinkSetUp(other), netlink.LinkSetUp(pair)); err != nil {
		return err
	}
	index := i.target.Attrs().Index
	if _, bridge := i.target.(*netlink.Bridge); bridge {
		index = 0 // all links: an answer that br_netfilter translates goes from port to port, past the bridge's own link
	}
	i.in, err = packetSocket(index, unix.ETH_P_ALL)
	return err
}

// only lets the socket have packets to one address.
func only(fd int, to netip.Addr) error {
	offset, rest := uint32(16), to.AsSlice()
	if to.Is6() {
		offset = 24
	}
	var program []bpf.Instruction
	for ; len(rest) > 0; rest, offset = rest[4:], offset+4 {
		left := 2*(len(rest)/4-1) + 1 // instructions up to the last one, which refuses
		program = append(program, bpf.LoadAbsolute{Off: offset, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(rest), SkipTrue: uint8(left)})
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: 1 << 18}, bpf.RetConstant{}))
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// close removes the pair of links, and with it the redirection.
func (i *injection) close() {
	if i.in >= 0 {
		_ = unix.Close(i.in)
	}
	if i.sender != nil {
		_ = netlink.LinkDel(i.sender) // RemoveStale tries again
	}
}

// packetSocket opens a socket for the IP packets of a link.
func packetSocket(index int, protocol uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: numbers.NetworkOrder(protocol), Ifindex: index}); err != nil {
		return -1, errors.Join(fmt.Errorf("bind a packet socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// send sends an IP packet to the other end of the pair.
func (i *injection) send(ip []byte) error {
	protocol := uint16(unix.ETH_P_IP)
	if ip[0]>>4 == 6 {
		protocol = unix.ETH_P_IPV6
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	to := &unix.SockaddrLinklayer{Protocol: numbers.NetworkOrder(protocol), Ifindex: i.sender.Attrs().Index, Halen: 6}
	copy(to.Addr[:], i.mac)
	return errors.Join(unix.Sendto(fd, ip, 0, to), unix.Close(fd))
}

// listen waits for the packet that the node sends to the client.
func (i *injection) listen(ctx context.Context, o trace.Order, client netip.AddrPort) trace.Heard {
	buf := make([]byte, 4096)
	s := &socket{fd: i.in}
	for {
		if err := s.wait(ctx, unix.POLLIN); err != nil {
			return trace.Heard{Outcome: trace.Silent, Error: "no answer"}
		}
		n, from, err := unix.Recvfrom(i.in, buf, 0)
		if err != nil {
			continue
		}
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype != unix.PACKET_OUTGOING {
			continue
		}
		if h, ok := answer(buf[:n], o, client); ok {
			return h
		}
	}
}

// RemoveStale removes the links of probes that were killed. A probe lasts seconds, so links older than a minute are stale.
func RemoveStale() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		at, ours := strings.CutPrefix(l.Attrs().Alias, linkAlias)
		made, err := time.Parse(time.RFC3339, at)
		if !ours || !strings.HasPrefix(l.Attrs().Name, linkPrefix) || err == nil && time.Since(made) < 2*trace.MaxWatch {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove %s, which a killed probe left: %w", l.Attrs().Name, err)
		}
	}
	return nil
}
