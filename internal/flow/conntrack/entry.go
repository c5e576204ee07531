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

// An Entry is one flow in the kernel's table.
type Entry struct{ entry }

// Proto returns the protocol.
func (e Entry) Proto() api.Proto { return e.orig.proto }

// Client returns the original source.
func (e Entry) Client() netip.AddrPort { return e.orig.src }

// Frontend returns the original destination: the address that the client called.
func (e Entry) Frontend() netip.AddrPort { return e.orig.dst }

// Endpoint returns the source of the replies. It equals Frontend if the flow is not translated.
func (e Entry) Endpoint() netip.AddrPort { return e.reply.src }

// ReplyTo returns the destination of the replies: the client, or the node if the node masquerades.
func (e Entry) ReplyTo() netip.AddrPort { return e.reply.dst }

// ID returns the kernel's number of the entry. nf_tables' traces have it too.
func (e Entry) ID() uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, e.id))
}

// Mark returns the entry's mark.
func (e Entry) Mark() uint32 { return e.mark }

// Bytes returns the bytes of both directions. counted is false if the kernel did not count them, because accounting was
// off when the entry was made.
func (e Entry) Bytes() (n uint64, counted bool) { return e.bytes, e.counted }

// Answered reports whether the entry has seen a packet of the reply direction.
func (e Entry) Answered() bool { return e.status&statusSeenReply != 0 }

// tcpStates has the names of TCP's states by number (linux/netfilter/nf_conntrack_tcp.h).
var tcpStates = [...]string{
	"", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2",
}

// State returns the state of a TCP connection as conntrack(8) writes it: "SYN_SENT". "" for other protocols.
func (e Entry) State() string {
	if int(e.state) < len(tcpStates) {
		return tcpStates[e.state]
	}
	return ""
}

// MarkedForReset reports whether MarkForReset has marked the entry.
func (e Entry) MarkedForReset() bool { return e.status&statusFixedTimeout != 0 }

// Open reports whether the entry is a TCP connection that both ends have established, and that has not ended.
func (e Entry) Open() bool {
	const synReceived, lastAck = 2, 6 // linux/netfilter/nf_conntrack_tcp.h
	return e.orig.proto == api.TCP && e.status&statusSeenReply != 0 && e.state >= synReceived && e.state <= lastAck
}

// Unanswered reports whether the entry is a TCP connection in state SYN_SENT: the endpoint has sent nothing.
func (e Entry) Unanswered() bool {
	const synSent = 1 // linux/netfilter/nf_conntrack_tcp.h
	return e.orig.proto == api.TCP && e.status&statusSeenReply == 0 && e.state == synSent
}

// in reports whether both directions of the entry are in the zone. A flow with a zone for one direction only is in no
// zone.
func (e entry) in(zone uint16) bool {
	return e.zone == zone && e.orig.zone == 0 && e.reply.zone == 0
}

// MarkForReset adds a mark to the entries, which the rules of package reset match, and gives them a timeout that
// packets do not extend. Other bits of an entry's mark stay. An entry that is already marked stays as it is.
// MarkForReset returns how many of the entries still existed.
func (t *Table) MarkForReset(ctx context.Context, all []Entry, mark uint32, after time.Duration) (marked int, err error) {
	var alive []Entry
	for _, e := range all {
		if !e.MarkedForReset() {
			alive = append(alive, e)
		}
	}
	return t.each(ctx, "mark for reset", alive, func(e entry) message { return e.markForReset(mark, after) })
}

// markForReset returns the request that marks the entry. The kernel finds the entry by the reply tuple. The tuple
// contains the endpoint, so a flow of the same client to another endpoint is not hit.
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
