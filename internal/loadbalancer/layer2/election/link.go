package election

import "time"

// A link protects the messages between this member and one peer against replays. It accepts messages that the peer sent
// after it heard this member's nonce, each once and in order. It refuses a recorded message even after a restart of
// either end.
type link struct {
	id nodeID
	// The peer echoes nonce. A peer that has restarted and forgot nonce must echo next.
	nonce, next uint64
	lastNonce   uint64        // the nonce before; late messages may still echo it
	echo        uint64        // the peer's nonce
	in, out     uint64        // counters of the last message in each direction
	nextHello   time.Duration // earliest time of the next hello
}

// accept decides whether an authentic message from this peer is new. needsHello says that the peer does not know this
// member's nonce and must get a hello.
func (l *link) accept(h header, random func() uint64) (ok, needsHello bool) {
	switch {
	case h.echo == l.nonce && l.nonce != 0:
		if h.counter <= l.in {
			// The message came twice or late. Or it is the hello of a peer that has restarted and counts from the
			// beginning; a hello gives that peer the nonce to prove it.
			return false, h.kind == kindHello
		}
	case h.echo == l.next:
		l.lastNonce, l.nonce, l.next = l.nonce, l.next, random()
	case h.echo == l.lastNonce && l.lastNonce != 0:
		return false, false
	default:
		return false, true
	}
	l.in, l.echo = h.counter, h.nonce
	return true, false
}

// header returns the header of the next message to the peer.
func (l *link) header(kind byte, self nodeID) header {
	l.out++
	nonce := l.nonce
	if kind == kindHello || nonce == 0 {
		nonce = l.next
	}
	return header{kind: kind, from: self, to: l.id, nonce: nonce, echo: l.echo, counter: l.out}
}

// mayGreet reports whether a hello may be sent now, and starts the next pause. Recorded messages cause hellos too, and
// messages are lost while the two ends change their nonces. The pause bounds the loss to one round of a grant.
func (l *link) mayGreet(now, pause time.Duration) bool {
	if now < l.nextHello {
		return false
	}
	l.nextHello = now + pause
	return true
}

// hello returns the header of a hello, which answers a message with a wrong echo.
func (l *link) hello(self nodeID, theirs uint64) header {
	h := l.header(kindHello, self)
	h.echo = theirs
	return h
}
