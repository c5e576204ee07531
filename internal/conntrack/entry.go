package conntrack

import (
	"context"
	"encoding/binary"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/service"
)

// An Entry is one flow that the kernel remembers.
type Entry struct{ entry }

// Proto is its protocol.
func (e Entry) Proto() service.Proto { return e.orig.proto }

// Client is who began it.
func (e Entry) Client() netip.AddrPort { return e.orig.src }

// To is where the client sends to.
func (e Entry) To() netip.AddrPort { return e.orig.dst }

// Endpoint is who answers; the same as To if it is not translated.
func (e Entry) Endpoint() netip.AddrPort { return e.reply.src }

// Back is whom the endpoint answers: the client, or the node in its stead.
func (e Entry) Back() netip.AddrPort { return e.reply.dst }

// Doomed reports whether Doom has been called for it.
func (e Entry) Doomed() bool { return e.status&statusFixedTimeout != 0 }

// Open reports whether both ends of a TCP connection believe in it.
func (e Entry) Open() bool {
	const synReceived, lastAck = 2, 6 // linux/netfilter/nf_conntrack_tcp.h
	return e.orig.proto == service.TCP && e.status&statusSeenReply != 0 && e.state >= synReceived && e.state <= lastAck
}

// in reports whether the entry is in the zone; flows that are in a zone in one direction
// only are in none.
func (e entry) in(zone uint16) bool {
	return e.zone == zone && e.orig.zone == 0 && e.reply.zone == 0
}

// Doom gives the entries the mark, for rules to see, and lets them end after the given
// time, whatever packets come. It returns how many were still there. The mark is or'ed
// to what is there. Entries that are doomed already stay as they are.
func (t *Table) Doom(ctx context.Context, all []Entry, mark uint32, after time.Duration) (doomed int, err error) {
	var alive []Entry
	for _, e := range all {
		if !e.Doomed() {
			alive = append(alive, e)
		}
	}
	return t.each(ctx, "doom", alive, func(e entry) message { return e.doom(mark, after) })
}

// doom changes the entry. The kernel finds it by the reply tuple, which has the endpoint
// in it, so that a flow of the same client that goes elsewhere is not hit.
func (e entry) doom(mark uint32, after time.Duration) message {
	m := newMessage(ctNew, unix.NLM_F_ACK, e.is4())
	m = m.attr(ctaTupleReply|unix.NLA_F_NESTED, e.raw...)
	if e.zone != 0 {
		m = m.attr(ctaZone, binary.BigEndian.AppendUint16(nil, e.zone)...)
	}
	seconds := uint32(max(1, math.Ceil(after.Seconds())))
	m = m.attr(ctaTimeout, binary.BigEndian.AppendUint32(nil, seconds)...)
	m = m.attr(ctaStatus, binary.BigEndian.AppendUint32(nil, e.status|statusFixedTimeout)...)
	m = m.attr(ctaMark, binary.BigEndian.AppendUint32(nil, mark)...)
	return m.attr(ctaMarkMask, binary.BigEndian.AppendUint32(nil, mark)...)
}
