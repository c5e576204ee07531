package bfd

import (
	"encoding/binary"
	"errors"
	"time"
)

// A State is the state of a session, with the numbers of RFC 5880.
type State uint8

// The states.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

// String returns the name that routers print.
func (s State) String() string { return [...]string{"AdminDown", "Down", "Init", "Up"}[s&3] }

// A diagnostic says why a session is not up.
type diagnostic uint8

const (
	diagNone     diagnostic = 0
	diagExpired  diagnostic = 1
	diagNeighbor diagnostic = 3
	diagAdmin    diagnostic = 7
)

// packetSize is the size of a packet without authentication.
const packetSize = 24

// A packet is a Control packet (RFC 5880, 4.1).
type packet struct {
	state       State
	diag        diagnostic
	poll, final bool
	demand      bool
	multiplier  uint8
	my, your    uint32
	transmit    time.Duration // Desired Min TX Interval
	receive     time.Duration // Required Min RX Interval
}

const (
	flagPoll, flagFinal, flagAuth, flagDemand, flagMultipoint = 0x20, 0x10, 0x04, 0x02, 0x01

	version = 1
)

func (p packet) marshal() []byte {
	b := make([]byte, packetSize)
	b[0] = version<<5 | byte(p.diag)
	b[1] = byte(p.state) << 6
	if p.poll {
		b[1] |= flagPoll
	}
	if p.final {
		b[1] |= flagFinal
	}
	b[2], b[3] = p.multiplier, packetSize
	binary.BigEndian.PutUint32(b[4:], p.my)
	binary.BigEndian.PutUint32(b[8:], p.your)
	binary.BigEndian.PutUint32(b[12:], uint32(p.transmit.Microseconds()))
	binary.BigEndian.PutUint32(b[16:], uint32(p.receive.Microseconds()))
	return b // the rest is zero: no echoes
}

var errMalformed = errors.New("not a BFD Control packet")

// parse decodes a packet and makes the checks that need no session (RFC 5880, 6.8.6).
func parse(b []byte) (p packet, err error) {
	if len(b) < packetSize || b[0]>>5 != version || b[3] < packetSize || int(b[3]) > len(b) || b[1]&(flagAuth|flagMultipoint) != 0 {
		return p, errMalformed
	}
	micro := func(at int) time.Duration {
		return time.Duration(binary.BigEndian.Uint32(b[at:])) * time.Microsecond
	}
	p = packet{
		state: State(b[1] >> 6), diag: diagnostic(b[0] & 0x1f), poll: b[1]&flagPoll != 0, final: b[1]&flagFinal != 0, demand: b[1]&flagDemand != 0,
		multiplier: b[2], my: binary.BigEndian.Uint32(b[4:]), your: binary.BigEndian.Uint32(b[8:]), transmit: micro(12), receive: micro(16),
	}
	if p.multiplier == 0 || p.my == 0 || p.your == 0 && p.state > Down {
		return p, errMalformed
	}
	return p, nil
}
