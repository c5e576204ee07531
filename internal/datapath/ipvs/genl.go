package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
)

// Constants IPVS_CMD_… and IPVS_…_ATTR_… of linux/ip_vs.h and linux/genetlink.h.
const (
	cmdNewServer, cmdSetServer, cmdDelServer, cmdGetServer = 1, 2, 3, 4
	cmdNewReal, cmdSetReal, cmdDelReal, cmdGetReal         = 5, 6, 7, 8
	cmdSetTimeouts                                         = 12

	attrServer, attrReal                           = 1, 2
	attrTCPTimeout, attrFinTimeout, attrUDPTimeout = 4, 5, 6

	serverAF, serverProto, serverAddr, serverPort       = 1, 2, 3, 4
	serverSched, serverFlags, serverTimeout, serverMask = 6, 7, 8, 9
	serverStats                                         = 12

	realAddr, realPort, realMethod, realWeight = 1, 2, 3, 4
	realUpper, realLower                       = 5, 6
	realActive, realInactive                   = 7, 8
	realAF                                     = 11

	flagPersistent = 1
	flagFallback   = 8 // IP_VS_SVC_F_SCHED1: sh and mh skip a full server

	statsConns = 1
	genlHeader = 4
)

// messagesPerSend bounds the messages of one system call: about 20 KiB.
const messagesPerSend = 150

// A genlConn is the connection to the kernel's IPVS: one socket in the network namespace of the thread that first used
// it. It sends many changes in one system call, which moby/ipvs cannot.
type genlConn struct {
	conn   *netlink.Conn // nil: not open
	family uint16
	// fail is called before each change, and its error fails the change. It may be nil.
	fail func() error
}

func (w *genlConn) open(ctx context.Context) error {
	if w.conn != nil {
		return nil
	}
	var err error
	if w.family, err = ipvsFamily(ctx); err != nil {
		return err
	}
	c, err := netlink.Dial(unix.NETLINK_GENERIC, &netlink.Config{MessageBufferSize: 32 << 10})
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	w.conn = c
	return nil
}

func (w *genlConn) close() {
	if w.conn != nil {
		_ = w.conn.Close()
		w.conn = nil
	}
}

// ipvsFamily returns the number of IPVS' netlink family. The kernel loads the module for the request, if it can.
func ipvsFamily(ctx context.Context) (uint16, error) {
	number, err := fwnetlink.Family(ctx, "IPVS")
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, errors.New("the kernel has no IPVS [modprobe ip_vs]")
	case err != nil:
		return 0, fmt.Errorf("look for IPVS: %w", err)
	}
	return number, nil
}

// attributes calls f for each attribute of a generic netlink message.
func attributes(data []byte, f func(typ uint16, d *netlink.AttributeDecoder)) error {
	if len(data) < genlHeader {
		return fmt.Errorf("message of %d bytes", len(data))
	}
	d, err := netlink.NewAttributeDecoder(data[genlHeader:])
	if err != nil {
		return err
	}
	return eachAttr(d, f)
}

// nestedAttrs calls f for each attribute inside the attributes of one type.
func nestedAttrs(data []byte, outer uint16, f func(typ uint16, d *netlink.AttributeDecoder)) error {
	return attributes(data, func(typ uint16, d *netlink.AttributeDecoder) {
		if typ == outer {
			d.Nested(func(d *netlink.AttributeDecoder) error { return eachAttr(d, f) })
		}
	})
}

func eachAttr(d *netlink.AttributeDecoder, f func(typ uint16, d *netlink.AttributeDecoder)) error {
	for d.Next() {
		f(d.Type(), d)
	}
	return d.Err()
}

// A serverOp is one change of IPVS.
type serverOp struct {
	cmd        byte
	server     serverID
	definition *virtualServer // for new and changed virtual servers
	real       netip.AddrPort // for changes of a real server
	weight     uint16
}

func (o serverOp) message(family uint16) (netlink.Message, error) {
	e := netlink.NewAttributeEncoder()
	e.Nested(attrServer, func(e *netlink.AttributeEncoder) error {
		o.server.encode(e)
		if o.definition != nil {
			o.definition.encode(e, o.server)
		}
		return nil
	})
	if o.real.IsValid() {
		e.Nested(attrReal, func(e *netlink.AttributeEncoder) error {
			a := o.real.Addr().As16()
			if o.real.Addr().Is4() {
				a = [16]byte{}
				copy(a[:], o.real.Addr().AsSlice())
			}
			e.Bytes(realAddr, a[:])
			e.Bytes(realPort, binary.BigEndian.AppendUint16(nil, o.real.Port()))
			if o.cmd != cmdDelReal {
				e.Uint32(realMethod, 0) // masquerading, which is NAT
				e.Uint32(realWeight, uint32(o.weight))
				e.Uint32(realUpper, 0)
				e.Uint32(realLower, 0)
			}
			return nil
		})
	}
	return message(family, o.cmd, e)
}

func message(family uint16, cmd byte, e *netlink.AttributeEncoder) (netlink.Message, error) {
	attrs, err := e.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(family), Flags: netlink.Request},
		Data:   append([]byte{cmd, 1, 0, 0}, attrs...),
	}, err
}

// encode writes the attributes that identify a virtual server.
func (i serverID) encode(e *netlink.AttributeEncoder) {
	var addr [16]byte
	copy(addr[:], i.Addr.Addr().AsSlice())
	af := uint16(unix.AF_INET6)
	if i.Addr.Addr().Is4() {
		af = unix.AF_INET
	}
	e.Uint16(serverAF, af)
	e.Uint16(serverProto, uint16(i.Proto))
	e.Bytes(serverAddr, addr[:])
	e.Bytes(serverPort, binary.BigEndian.AppendUint16(nil, i.Addr.Port()))
}

// encode writes the other attributes of a virtual server, without its real servers.
func (s *virtualServer) encode(e *netlink.AttributeEncoder, i serverID) {
	var flags, timeout uint32
	mask := uint32(128)
	if i.Addr.Addr().Is4() {
		mask = ^uint32(0)
	}
	if s.persist > 0 {
		flags, timeout = flagPersistent, s.persist
	}
	if s.sched == "sh" || s.sched == "mh" {
		flags |= flagFallback
	}
	e.String(serverSched, s.sched)
	e.Bytes(serverFlags, binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, flags), ^uint32(0)))
	e.Uint32(serverTimeout, timeout)
	e.Uint32(serverMask, mask)
}

// do makes changes in order. After an error, some of them may have been made.
func (w *genlConn) do(ctx context.Context, ops []serverOp) error {
	for len(ops) > 0 {
		n := min(len(ops), messagesPerSend)
		if err := w.send(ctx, ops[:n]); err != nil {
			w.close() // the socket may have unread answers
			return fmt.Errorf("change IPVS: %w", err)
		}
		ops = ops[n:]
	}
	return nil
}

func (w *genlConn) send(ctx context.Context, ops []serverOp) error {
	if w.fail != nil {
		if err := w.fail(); err != nil {
			return err
		}
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	msgs := make([]netlink.Message, len(ops))
	for i, o := range ops {
		var err error
		if msgs[i], err = o.message(w.family); err != nil {
			return err
		}
	}
	// The kernel always reports errors. It reports success only on request.
	msgs[len(msgs)-1].Header.Flags |= netlink.Acknowledge
	return fwnetlink.Within(ctx, w.conn, func() error {
		sent, err := w.conn.SendMessages(msgs)
		if err != nil {
			return err
		}
		last := sent[len(sent)-1].Header.Sequence
		for {
			got, err := w.conn.Receive()
			if err != nil {
				return err
			}
			for _, m := range got {
				if m.Header.Sequence == last {
					return nil
				}
			}
		}
	})
}

// execute sends one request and returns the answers.
func execute(ctx context.Context, c *netlink.Conn, m netlink.Message) (msgs []netlink.Message, err error) {
	err = fwnetlink.Within(ctx, c, func() (err error) {
		msgs, err = c.Execute(m)
		return err
	})
	return msgs, err
}

// ask requests a dump. about is a virtual server, or nil for all.
func (w *genlConn) ask(ctx context.Context, cmd byte, about *serverID) ([]netlink.Message, error) {
	if err := w.open(ctx); err != nil {
		return nil, err
	}
	e := netlink.NewAttributeEncoder()
	if about != nil {
		e.Nested(attrServer, func(e *netlink.AttributeEncoder) error {
			about.encode(e)
			return nil
		})
	}
	m, err := message(w.family, cmd, e)
	if err != nil {
		return nil, err
	}
	m.Header.Flags |= netlink.Dump
	msgs, err := execute(ctx, w.conn, m)
	if err != nil {
		w.close()
	}
	return msgs, err
}

// A listedServer is a virtual server in the kernel's list.
type listedServer struct {
	virtualServer
	conns uint64 // the number of connections that it scheduled
}

// maxLists bounds how often the list of virtual servers is requested.
const maxLists = 20

// servers returns the virtual servers without their real servers. The kernel continues a long list at an index that
// counts the servers of all network namespaces. If another namespace changes its servers meanwhile, the list misses
// some of ours. So the list is requested again until two lists are equal.
func (w *genlConn) servers(ctx context.Context) (map[serverID]*listedServer, error) {
	var before map[serverID]*listedServer
	for range maxLists {
		msgs, err := w.ask(ctx, cmdGetServer, nil)
		if err != nil {
			return nil, fmt.Errorf("list virtual servers: %w", err)
		}
		all := map[serverID]*listedServer{}
		for _, m := range msgs {
			i, f, err := parseServer(m.Data)
			if err != nil {
				return nil, fmt.Errorf("list virtual servers: %w", err)
			}
			if isVirtualServerAddr(i.Addr.Addr()) {
				all[i] = f
			}
		}
		if before != nil && sameKeys(before, all) {
			return all, nil
		}
		before = all
	}
	return nil, fmt.Errorf("list virtual servers: %d lists differ", maxLists)
}

func sameKeys(a, b map[serverID]*listedServer) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if b[i] == nil {
			return false
		}
	}
	return true
}

func parseServer(data []byte) (serverID, *listedServer, error) {
	var (
		f           listedServer
		af, proto   uint16
		addr        []byte
		port        uint16
		flags, time uint32
	)
	err := nestedAttrs(data, attrServer, func(typ uint16, d *netlink.AttributeDecoder) {
		switch typ {
		case serverAF:
			af = d.Uint16()
		case serverProto:
			proto = d.Uint16()
		case serverAddr:
			addr = d.Bytes()
		case serverPort:
			port = bigEndian16(d.Bytes())
		case serverSched:
			f.sched = d.String()
		case serverFlags:
			if b := d.Bytes(); len(b) >= 4 {
				flags = binary.NativeEndian.Uint32(b)
			}
		case serverTimeout:
			time = d.Uint32()
		case serverStats:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				return eachAttr(d, func(typ uint16, d *netlink.AttributeDecoder) {
					if typ == statsConns {
						f.conns = d.Uint64()
					}
				})
			})
		}
	})
	if err != nil {
		return serverID{}, nil, err
	}
	if flags&flagPersistent != 0 {
		f.persist = time
	}
	a, err := parseAddr(af, addr)
	return serverID{Addr: netip.AddrPortFrom(a, port), Proto: api.Proto(proto)}, &f, err
}

// A realServer is a real server in the kernel's list.
type realServer struct {
	weight uint16
	conns  uint32 // number of active and inactive connections
}

// reals returns the real servers of a virtual server.
func (w *genlConn) reals(ctx context.Context, of serverID) (map[netip.AddrPort]realServer, error) {
	msgs, err := w.ask(ctx, cmdGetReal, &of)
	if err != nil {
		return nil, fmt.Errorf("list real servers of %v: %w", of, err)
	}
	all := map[netip.AddrPort]realServer{}
	for _, m := range msgs {
		a, r, err := parseReal(m.Data, of.Addr.Addr().Is4())
		if err != nil {
			return nil, fmt.Errorf("list real servers of %v: %w", of, err)
		}
		all[a] = r
	}
	return all, nil
}

func parseReal(data []byte, is4 bool) (netip.AddrPort, realServer, error) {
	var (
		r    realServer
		addr []byte
		port uint16
	)
	af := uint16(unix.AF_INET6)
	if is4 {
		af = unix.AF_INET
	}
	err := nestedAttrs(data, attrReal, func(typ uint16, d *netlink.AttributeDecoder) {
		switch typ {
		case realAddr:
			addr = d.Bytes()
		case realPort:
			port = bigEndian16(d.Bytes())
		case realWeight:
			r.weight = uint16(min(d.Uint32(), 65535))
		case realActive, realInactive:
			r.conns += d.Uint32()
		}
	})
	if err != nil {
		return netip.AddrPort{}, r, err
	}
	a, err := parseAddr(af, addr)
	return netip.AddrPortFrom(a, port), r, err
}

func bigEndian16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// parseAddr reads an address from its sixteen bytes.
func parseAddr(af uint16, b []byte) (netip.Addr, error) {
	size := 16
	if af == unix.AF_INET {
		size = 4
	}
	a, ok := netip.AddrFromSlice(b[:min(len(b), size)])
	if !ok {
		return a, fmt.Errorf("address of family %d has %d bytes", af, len(b))
	}
	return a, nil
}

// timeouts sets how long IPVS keeps connections, in seconds. 0 leaves a timeout unchanged.
func (w *genlConn) timeouts(ctx context.Context, tcp, fin, udp uint32) error {
	if err := w.open(ctx); err != nil {
		return err
	}
	e := netlink.NewAttributeEncoder()
	e.Uint32(attrTCPTimeout, tcp)
	e.Uint32(attrFinTimeout, fin)
	e.Uint32(attrUDPTimeout, udp)
	m, err := message(w.family, cmdSetTimeouts, e)
	if err != nil {
		return err
	}
	m.Header.Flags |= netlink.Acknowledge
	if _, err := execute(ctx, w.conn, m); err != nil {
		w.close()
		return fmt.Errorf("set IPVS timeouts: %w", err)
	}
	return nil
}
