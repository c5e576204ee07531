package dns

import (
	"bytes"
	"encoding/binary"

	"github.com/miekg/dns"
)

// The bits of a header that a plain question may have: recursion desired, authentic data, checking disabled.
const (
	bitRD = 0x0100
	bitAD = 0x0020
	bitCD = 0x0010
)

const (
	headerSize = 12
	optSize    = 11 // of an OPT record without options
)

// A question is a message in the form that nearly all clients send: one question about an address, the name in lower case,
// and at most an OPT record without options.
type question struct {
	key    []byte // name, type and class, as in the message
	name   []byte // the name without the root label
	qtype  uint16
	bits   uint16
	hasOPT bool
	size   int // the largest answer that the client takes
	do     bool
}

// parseQuestion returns the question of a message. ok is false for all other forms, which may be valid too.
func parseQuestion(msg []byte) (q question, ok bool) {
	if len(msg) < headerSize || binary.BigEndian.Uint32(msg[4:]) != 1<<16 || binary.BigEndian.Uint16(msg[8:]) != 0 {
		return q, false
	}
	q.bits = binary.BigEndian.Uint16(msg[2:])
	extra := binary.BigEndian.Uint16(msg[10:])
	end := plainName(msg)
	if q.bits&^(bitRD|bitAD|bitCD) != 0 || extra > 1 || end == 0 || len(msg) != end+5+int(extra)*optSize {
		return q, false
	}
	q.name, q.key = msg[headerSize:end], msg[headerSize:end+5]
	q.qtype = binary.BigEndian.Uint16(msg[end+1:])
	if q.qtype != dns.TypeA && q.qtype != dns.TypeAAAA || binary.BigEndian.Uint16(msg[end+3:]) != dns.ClassINET {
		return q, false
	}
	q.size = dns.MinMsgSize
	if extra == 0 {
		return q, true
	}
	opt := msg[end+5:]
	if opt[0] != 0 || binary.BigEndian.Uint16(opt[1:]) != dns.TypeOPT || binary.BigEndian.Uint16(opt[5:]) != 0 || opt[7]&^0x80 != 0 || opt[8] != 0 || binary.BigEndian.Uint16(opt[9:]) != 0 {
		return q, false
	}
	q.hasOPT, q.do = true, opt[7] == 0x80
	q.size = max(q.size, int(binary.BigEndian.Uint16(opt[3:])))
	return q, true
}

// plainName returns the offset of the root label of the name in a message; 0 if the name has a pointer, a capital letter,
// or a letter that host names do not have.
func plainName(msg []byte) int {
	for at := headerSize; at < len(msg); {
		n := int(msg[at])
		if n == 0 {
			if at+5 > len(msg) || at-headerSize > 254 {
				return 0
			}
			return at
		}
		if n > 63 || at+1+n > len(msg) {
			return 0
		}
		for _, c := range msg[at+1 : at+1+n] {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return 0
			}
		}
		at += 1 + n
	}
	return 0
}

// isIn reports whether the name is a zone, or below it. zone has no root label.
func (q question) isIn(zone []byte) bool {
	start := len(q.name) - len(zone)
	if start < 0 || !bytes.Equal(q.name[start:], zone) {
		return false
	}
	at := 0
	for at < start {
		at += 1 + int(q.name[at])
	}
	return at == start
}
