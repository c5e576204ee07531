package conntrack

import (
	"context"
	"encoding/binary"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
)

// An Entry is one flow that the kernel remembers.
type Entry struct{ entry }

// Proto is its protocol.
func (e Entry) Proto() api.Proto { return e.orig.proto }

// Client is the original source.
func (e Entry) Client() netip.AddrPort { return e.orig.src }

// Frontend is the original destination: where the client sends to.
func (e Entry) Frontend() netip.AddrPort { return e.orig.dst }

// Endpoint is the source of the reply; the same as Frontend if the flow is not translated.
func (e Entry) Endpoint() netip.AddrPort { return e.reply.src }

// ReplyTo is the destination of the reply: the client, or the node if it masquerades.
func (e Entry) ReplyTo() netip.AddrPort { return e.reply.dst }

// MarkedForReset reports whether MarkForReset has been called for it.
func (e Entry) MarkedForReset() bool { return e.status&statusFixedTimeout != 0 }

// Open reports whether a TCP connection is established for both ends, or closing.
func (e Entry) Open() bool {
	const synReceived, lastAck = 2, 6 // linux/netfilter/nf_conntrack_tcp.h
	return e.orig.proto == api.TCP && e.status&statusSeenReply != 0 && e.state >= synReceived && e.state <= lastAck
}

// Unanswered reports whether it is a TCP connection of which only the client has sent something.
func (e Entry) Unanswered() bool {
	const synSent = 1 // linux/netfilter/nf_conntrack_tcp.h
	return e.orig.proto == api.TCP && e.status&statusSeenReply == 0 && e.state == synSent
}

// in reports whether the entry is in the zone; flows that are in a zone in one direction
// only are in none.
func (e entry) in(zone uint16) bool {
	return e.zone == zone && e.orig.zone == 0 && e.reply.zone == 0
}

// MarkForReset gives the entries the mark, which rules match (package reset), and a fixed
// timeout, which no packet extends. It returns how many were still there. The mark is or'ed
// to the entry's own. Entries that are marked already stay as they are.
func (t *Table) MarkForReset(ctx context.Context, all []Entry, mark uint32, after time.Duration) (marked int, err error) {
	var alive []Entry
	for _, e := range all {
		if !e.MarkedForReset() {
			alive = append(alive, e)
		}
	}
	return t.each(ctx, "mark for reset", alive, func(e entry) message { return e.markForReset(mark, after) })
}

// markForReset changes the entry. The kernel finds it by the reply tuple, which has the endpoint
// in it, so that a flow of the same client that goes elsewhere is not hit.
func (e entry) markForReset(mark uint32, after time.Duration) message {
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
