package election

import "time"

// A link is what a member knows of the messages between it and one peer. It lets in what the
// peer sent after it heard our nonce, once and in order: a recorded message is refused also
// after a restart of either end.
type link struct {
	id nodeID
	// nonce is the one that the peer echoes; next the one that it must echo to begin anew,
	// because it has restarted and forgot nonce.
	nonce, next uint64
	former      uint64        // the nonce before: messages that echo it were under way at the change
	echo        uint64        // the nonce that the peer gave us
	in, out     uint64        // counters of the last message in each direction
	quiet       time.Duration // no hello before
}

// accept decides about a message that is authentic and from this peer. renew says that the
// peer does not know our nonce: it is to be told by a hello.
func (l *link) accept(h header, random func() uint64) (ok, renew bool) {
	switch {
	case h.echo == l.nonce && l.nonce != 0:
		if h.counter <= l.in {
			// Doubled, or overtaken by a later one; or a hello of a peer that has restarted
			// and counts from the beginning: it is told the nonce that proves so.
			return false, h.kind == kindHello
		}
	case h.echo == l.next:
		l.former, l.nonce, l.next = l.nonce, l.next, random()
	case h.echo == l.former && l.former != 0:
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

// greet reports whether a hello may be sent now, and notes that it is. Recorded messages ask for hellos too, and
// what is under way while the two then change their nonces is lost: it must not be more than one round of a grant's.
func (l *link) greet(now, pause time.Duration) bool {
	if now < l.quiet {
		return false
	}
	l.quiet = now + pause
	return true
}

// hello answers a message with an echo that is wrong.
func (l *link) hello(self nodeID, theirs uint64) header {
	h := l.header(kindHello, self)
	h.echo = theirs
	return h
}
