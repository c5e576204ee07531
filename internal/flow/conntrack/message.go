package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
)

// linux/netfilter/nfnetlink_conntrack.h
const (
	ctNew      = unix.NFNL_SUBSYS_CTNETLINK << 8
	ctGet      = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete   = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	ctGetStats = unix.NFNL_SUBSYS_CTNETLINK<<8 | 5

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaTimeout    = 7
	ctaMark       = 8
	ctaCountOrig  = 9
	ctaCountReply = 10
	ctaID         = 12
	ctaZone       = 18
	ctaMarkMask   = 21
	ctaFilter     = 25

	ctaCountersBytes = 2

	ctaProtoInfoTCP      = 1
	ctaProtoInfoTCPState = 1

	statusSeenReply    = 1 << 1
	statusFixedTimeout = 1 << 10

	ctaStatsEntries = 1

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
)

// Bits that select the fields a filter compares (net/netfilter/nf_internals.h).
const (
	flagIPSrc    = 1 << 0
	flagIPDst    = 1 << 1
	flagProtoNum = 1 << 3
	flagSrcPort  = 1 << 4
	flagDstPort  = 1 << 5
)

const (
	nlmsgHeader  = 16
	nfgenHeader  = 4
	attrHeader   = 4
	attrTypeMask = 1<<14 - 1 // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
)

// A message is a netlink request under construction. Call finish last.
type message []byte

func newMessage(typ uint16, flags uint16, is4 bool) message {
	m := make(message, nlmsgHeader+nfgenHeader, 128)
	binary.NativeEndian.PutUint16(m[4:], typ)
	binary.NativeEndian.PutUint16(m[6:], flags|unix.NLM_F_REQUEST)
	m[nlmsgHeader] = unix.AF_INET6
	if is4 {
		m[nlmsgHeader] = unix.AF_INET
	}
	return m
}

// finish sets the length and the sequence number.
func (m message) finish(seq uint32) message {
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint32(m[8:], seq)
	return m
}

func (m message) attr(typ uint16, data ...byte) message {
	m = binary.NativeEndian.AppendUint16(m, uint16(attrHeader+len(data)))
	m = binary.NativeEndian.AppendUint16(m, typ)
	m = append(m, data...)
	for len(m)%4 != 0 {
		m = append(m, 0)
	}
	return m
}

func (m message) nest(typ uint16, fill func(message) message) message {
	at := len(m)
	m = fill(m.attr(typ | unix.NLA_F_NESTED))
	binary.NativeEndian.PutUint16(m[at:], uint16(len(m)-at))
	return m
}

// request returns the message that asks for the dump. attr is the number of the filter attribute: ctaFilter.
func (f filter) request(attr uint16) message {
	m := newMessage(ctGet, unix.NLM_F_DUMP, f.is4)
	if f.proto == 0 {
		return m
	}
	orig, reply := uint32(flagProtoNum), uint32(0)
	if f.to.addr.IsValid() {
		orig |= flagIPDst
	}
	if f.to.port != 0 {
		orig |= flagDstPort
	}
	m = m.nest(ctaTupleOrig, func(m message) message {
		return m.tuple(f.proto, f.to, ctaIPv4Dst, ctaProtoDstPort)
	})
	if f.by != (tupleEnd{}) {
		reply = flagProtoNum
		if f.by.addr.IsValid() {
			reply |= flagIPSrc
		}
		if f.by.port != 0 {
			reply |= flagSrcPort
		}
		m = m.nest(ctaTupleReply, func(m message) message {
			return m.tuple(f.proto, f.by, ctaIPv4Src, ctaProtoSrcPort)
		})
	}
	return m.nest(attr, func(m message) message {
		m = m.attr(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, orig)...)
		return m.attr(ctaFilterReplyFlags, binary.NativeEndian.AppendUint32(nil, reply)...)
	})
}

// getRequest returns the request for the entry with these original addresses.
func getRequest(p api.Proto, src, dst netip.AddrPort, zone uint16) message {
	m := newMessage(ctGet, unix.NLM_F_ACK, dst.Addr().Is4())
	ipSrc, ipDst := uint16(ctaIPv6Src), uint16(ctaIPv6Dst)
	if dst.Addr().Is4() {
		ipSrc, ipDst = ctaIPv4Src, ctaIPv4Dst
	}
	m = m.nest(ctaTupleOrig, func(m message) message {
		m = m.nest(ctaTupleIP, func(m message) message {
			return m.attr(ipSrc, src.Addr().AsSlice()...).attr(ipDst, dst.Addr().AsSlice()...)
		})
		return m.nest(ctaTupleProto, func(m message) message {
			m = m.attr(ctaProtoNum, byte(p)).attr(ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, src.Port())...)
			return m.attr(ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, dst.Port())...)
		})
	})
	if zone != 0 {
		m = m.attr(ctaZone, binary.BigEndian.AppendUint16(nil, zone)...)
	}
	return m
}

// tuple adds one end of a tuple and its protocol.
func (m message) tuple(p api.Proto, e tupleEnd, ip, port uint16) message {
	if e.addr.IsValid() {
		m = m.nest(ctaTupleIP, func(m message) message { return m.attr(ip, e.addr.AsSlice()...) })
	}
	return m.nest(ctaTupleProto, func(m message) message {
		m = m.attr(ctaProtoNum, byte(p))
		if e.port != 0 {
			m = m.attr(port, binary.BigEndian.AppendUint16(nil, e.port)...)
		}
		return m
	})
}

// An entry is one flow of the kernel's table.
type entry struct {
	orig, reply tuple
	zone        uint16 // the zone of both directions
	id          uint32 // in the byte order of the message
	status      uint32
	mark        uint32
	bytes       uint64 // of both directions
	counted     bool   // the kernel counts the entry's bytes
	state       byte   // the state of TCP
	raw         []byte // the reply tuple as received
}

type tuple struct {
	proto    api.Proto
	src, dst netip.AddrPort
	zone     uint16 // the zone of this direction only
}

func (e entry) is4() bool { return e.orig.dst.Addr().Is4() }

// clone returns a copy that does not refer to the read buffer.
func (e entry) clone() entry {
	e.raw = slices.Clone(e.raw)
	return e
}

// deletion returns the request that deletes this entry and no other. The reply tuple contains the endpoint, so it does
// not match a newer flow of the same client to another endpoint. The kernel computes the id from the original tuple
// too, so it does not match a newer flow to another frontend. A request without a tuple would empty the table.
func (e entry) deletion() message {
	m := newMessage(ctDelete, unix.NLM_F_ACK, e.is4())
	m = m.attr(ctaTupleReply|unix.NLA_F_NESTED, e.raw...)
	m = m.attr(ctaID, binary.NativeEndian.AppendUint32(nil, e.id)...)
	if e.zone != 0 {
		m = m.attr(ctaZone, binary.BigEndian.AppendUint16(nil, e.zone)...)
	}
	return m
}

// parse reads a netlink message without its header. The ports of a flow without ports are 0. ok is false for an
// incomplete entry.
func parse(b []byte) (e entry, ok bool) {
	if len(b) < nfgenHeader {
		return e, false
	}
	hasID := false
	for typ, data := range attrs(b[nfgenHeader:]) {
		switch typ {
		case ctaTupleOrig:
			e.orig = parseTuple(data)
		case ctaTupleReply:
			e.reply, e.raw = parseTuple(data), data
		case ctaID:
			if hasID = len(data) == 4; hasID {
				e.id = binary.NativeEndian.Uint32(data)
			}
		case ctaZone:
			e.zone = be16(data)
		case ctaStatus:
			e.status = be32(data)
		case ctaMark:
			e.mark = be32(data)
		case ctaProtoInfo:
			e.state = parseState(data)
		case ctaCountOrig, ctaCountReply:
			e.bytes, e.counted = e.bytes+parseBytes(data), true
		}
	}
	return e, hasID && e.orig.complete() && e.reply.complete()
}

func (t tuple) complete() bool {
	return t.proto != 0 && t.dst.IsValid() && t.src.IsValid()
}

func parseTuple(b []byte) tuple {
	var t tuple
	var src, dst netip.Addr
	var sport, dport uint16
	for typ, data := range attrs(b) {
		switch typ {
		case ctaTupleIP:
			for typ, data := range attrs(data) {
				switch typ {
				case ctaIPv4Src, ctaIPv6Src:
					src, _ = netip.AddrFromSlice(data)
				case ctaIPv4Dst, ctaIPv6Dst:
					dst, _ = netip.AddrFromSlice(data)
				}
			}
		case ctaTupleProto:
			for typ, data := range attrs(data) {
				switch typ {
				case ctaProtoNum:
					if len(data) > 0 {
						t.proto = api.Proto(data[0])
					}
				case ctaProtoSrcPort:
					sport = be16(data)
				case ctaProtoDstPort:
					dport = be16(data)
				}
			}
		case ctaTupleZone:
			t.zone = be16(data)
		}
	}
	t.src, t.dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return t
}

// parseState returns the state of a TCP flow, or 0 for other protocols.
func parseState(b []byte) (state byte) {
	for typ, data := range attrs(b) {
		if typ != ctaProtoInfoTCP {
			continue
		}
		for typ, data := range attrs(data) {
			if typ == ctaProtoInfoTCPState && len(data) > 0 {
				state = data[0]
			}
		}
	}
	return state
}

// parseBytes returns the bytes of one direction.
func parseBytes(b []byte) uint64 {
	for typ, data := range attrs(b) {
		if typ == ctaCountersBytes && len(data) == 8 {
			return binary.BigEndian.Uint64(data)
		}
	}
	return 0
}

func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func be16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

// attrs yields the complete attributes in b.
func attrs(b []byte) func(yield func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrHeader {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrHeader || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&attrTypeMask, b[attrHeader:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}
