package election

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
)

// Bounds of messages. Larger messages are neither sent nor read.
const (
	// MaxAddrs is the number of addresses that one node can hold.
	MaxAddrs = 1 << 14
	// addrsPerPart keeps a message below the MTU of common networks.
	addrsPerPart = 60
	maxIndices   = 100 // a longer list of positions is sent as a bitmap
	maxOut       = 255 // nodes in the list of a Grant
	deadFollow   = 0   // in that list: the rest are dead nodes
	maxDead      = maxOut / 2
	tagSize      = 16
	headerSize   = 2 + 5*8
	// MaxMessage is the size of the largest message.
	MaxMessage = 8192
)

// protocolVersion is the first byte of every message.
const protocolVersion = 1

// The kinds of messages.
const (
	kindHello     = 1 // has only the header, with the nonce to echo
	kindHeartbeat = 2
	kindClaims    = 3
	kindGrant     = 4
)

// A nodeID stands for a node's name in messages.
type nodeID uint64

func idOf(name string) nodeID {
	sum := sha256.Sum256([]byte(name))
	return nodeID(binary.BigEndian.Uint64(sum[:]))
}

// A header begins every message.
type header struct {
	kind     byte
	from, to nodeID
	nonce    uint64 // for the receiver to echo
	echo     uint64 // the receiver's nonce; 0: unknown
	counter  uint64 // grows with each message to this receiver
}

// A heartbeat asks a voter for its grant.
type heartbeat struct {
	seq      uint64
	epoch    uint64
	version  uint64 // of the list of claims
	excluded bool   // another node is a better owner
	leaving  bool   // only with excluded: the speaker ends, the node may live on
}

// claims is one part of a list of addresses.
type claims struct {
	version     uint64
	part, parts uint16
	addrs       []netip.Addr
}

// A grant is a voter's answer to a heartbeat.
type grant struct {
	seq     uint64
	epoch   uint64
	version uint64 // of the granted list; 0: none
	// refused and contested are positions in that list: of addresses that are promised to another node, and of addresses
	// for which another node asks.
	refused, contested []uint16
	// out has the first half of the ids of nodes that are silent or excluded. dead has the nodes of out that fell silent
	// without a goodbye. A message has them after a 0 at the end of out, which older versions take for a node.
	out, dead []uint32
}

// A message is a header and the body of its kind.
type message struct {
	header
	heartbeat heartbeat
	claims    claims
	grant     grant
}

// seal encodes m and appends its authentication code.
func (m *message) seal(key []byte) []byte {
	b := make([]byte, 0, 128)
	b = append(b, protocolVersion, m.kind)
	for _, v := range [...]uint64{uint64(m.from), uint64(m.to), m.nonce, m.echo, m.counter} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	switch m.kind {
	case kindHeartbeat:
		b = m.heartbeat.append(b)
	case kindClaims:
		b = m.claims.append(b)
	case kindGrant:
		b = m.grant.append(b)
	}
	return append(b, tag(key, b)...)
}

func tag(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(b)
	return h.Sum(nil)[:tagSize]
}

// Flags of a heartbeat.
const (
	flagExcluded = 1 << iota
	flagLeaving
)

func (h heartbeat) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.seq)
	b = binary.BigEndian.AppendUint64(b, h.epoch)
	b = binary.BigEndian.AppendUint64(b, h.version)
	switch {
	case h.leaving:
		return append(b, flagExcluded|flagLeaving)
	case h.excluded:
		return append(b, flagExcluded)
	}
	return append(b, 0)
}

func (c claims) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, c.version)
	b = binary.BigEndian.AppendUint16(b, c.part)
	b = binary.BigEndian.AppendUint16(b, c.parts)
	b = binary.BigEndian.AppendUint16(b, uint16(len(c.addrs)))
	for _, a := range c.addrs {
		b = append(b, byte(a.BitLen()/8))
		b = append(b, a.AsSlice()...)
	}
	return b
}

func (g grant) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, g.seq)
	b = binary.BigEndian.AppendUint64(b, g.epoch)
	b = binary.BigEndian.AppendUint64(b, g.version)
	b = appendIndices(b, g.refused)
	b = appendIndices(b, g.contested)
	all := g.out
	if len(g.dead) > 0 {
		all = slices.Concat(g.out[:min(len(g.out), maxOut-1-len(g.dead))], []uint32{deadFollow}, g.dead)
	}
	b = append(b, byte(len(all)))
	for _, id := range all {
		b = binary.BigEndian.AppendUint32(b, id)
	}
	return b
}

// bitmap in place of the number of positions says that a bitmap follows.
const bitmap = 0xffff

// appendIndices writes sorted positions.
func appendIndices(b []byte, list []uint16) []byte {
	if len(list) <= maxIndices {
		b = binary.BigEndian.AppendUint16(b, uint16(len(list)))
		for _, i := range list {
			b = binary.BigEndian.AppendUint16(b, i)
		}
		return b
	}
	bits := make([]byte, list[len(list)-1]/8+1)
	for _, i := range list {
		bits[i/8] |= 1 << (i % 8)
	}
	b = binary.BigEndian.AppendUint16(b, bitmap)
	b = binary.BigEndian.AppendUint16(b, uint16(len(bits)))
	return append(b, bits...)
}

var (
	errMessage = errors.New("message is malformed")
	errTag     = errors.New("message has a wrong authentication code [do all speakers have the same Secret?]")
)

// Authentic reports whether a packet has the right authentication code. A caller can refuse forged packets before they
// fill a queue. Receive checks the code too.
func Authentic(key, b []byte) bool {
	return len(b) >= headerSize+tagSize && len(b) <= MaxMessage && hmac.Equal(tag(key, b[:len(b)-tagSize]), b[len(b)-tagSize:])
}

// open checks the authentication of a message and decodes it.
func open(key, b []byte) (m message, err error) {
	if len(b) < headerSize+tagSize || len(b) > MaxMessage || b[0] != protocolVersion {
		return m, errMessage
	}
	if !Authentic(key, b) {
		return m, errTag
	}
	r := reader{b: b[1 : len(b)-tagSize]}
	m.kind = r.byte()
	m.from, m.to = nodeID(r.u64()), nodeID(r.u64())
	m.nonce, m.echo, m.counter = r.u64(), r.u64(), r.u64()
	switch m.kind {
	case kindHello:
	case kindHeartbeat:
		m.heartbeat = r.heartbeat()
	case kindClaims:
		m.claims = r.claims()
	case kindGrant:
		m.grant = r.grant()
	default:
		r.bad = true
	}
	if r.bad || len(r.b) != 0 {
		return message{}, errMessage
	}
	return m, nil
}

// A reader takes values from the front of b. bad says that b was too short or a value was wrong.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || len(r.b) < n {
		r.bad = true
		return make([]byte, n) // all callers bound n
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte  { return r.take(1)[0] }
func (r *reader) u16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }

func (r *reader) heartbeat() heartbeat {
	h := heartbeat{seq: r.u64(), epoch: r.u64(), version: r.u64()}
	flags := r.byte()
	h.excluded, h.leaving = flags&flagExcluded != 0, flags&flagLeaving != 0
	r.bad = r.bad || flags > flagExcluded|flagLeaving || h.leaving && !h.excluded
	return h
}

func (r *reader) claims() claims {
	c := claims{version: r.u64(), part: r.u16(), parts: r.u16()}
	n := int(r.u16())
	r.bad = r.bad || n > addrsPerPart || c.part >= c.parts || int(c.parts) > MaxAddrs/addrsPerPart+1
	for i := 0; i < n && !r.bad; i++ {
		size := int(r.byte())
		if size != 4 && size != 16 {
			r.bad = true
			break
		}
		a, _ := netip.AddrFromSlice(r.take(size))
		c.addrs = append(c.addrs, a)
	}
	return c
}

func (r *reader) grant() grant {
	g := grant{seq: r.u64(), epoch: r.u64(), version: r.u64(), refused: r.indices(), contested: r.indices()}
	list := &g.out
	for n := int(r.byte()); n > 0 && !r.bad; n-- {
		if id := r.u32(); id == deadFollow {
			list = &g.dead
		} else {
			*list = append(*list, id)
		}
	}
	return g
}

func (r *reader) indices() (all []uint16) {
	n := int(r.u16())
	if n == bitmap {
		n = int(r.u16())
		if r.bad = r.bad || n > MaxAddrs/8; r.bad {
			return nil
		}
		for i, bits := range r.take(n) {
			for bit := range 8 {
				if bits&(1<<bit) != 0 {
					all = append(all, uint16(i*8+bit))
				}
			}
		}
		return all
	}
	r.bad = r.bad || n > maxIndices
	for ; n > 0 && !r.bad; n-- {
		all = append(all, r.u16())
	}
	return all
}
