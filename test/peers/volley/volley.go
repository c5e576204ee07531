package volley

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
)

// A Probe is the first packet of a flow.
type Probe struct {
	From  *Station
	Src   netip.Addr
	To    netip.AddrPort
	Proto api.Proto
	// Likely says that an answer or arrival is expected: Fire waits for it longer.
	Likely bool
}

// A Verdict is the answer that the client got.
type Verdict uint8

// The verdicts. Past is an answer from an address that was never asked: the endpoint
// has seen the client itself, and its answer has not come through the node.
const (
	Silence Verdict = iota
	Answered
	Past
	Reset   // a TCP reset
	Refused // an ICMP error: port unreachable
	Lost    // any other ICMP error
)

// String returns the verdict in a word or three.
func (v Verdict) String() string {
	return [...]string{"silence", "answered", "answered past the node", "reset", "refused", "unreachable"}[v]
}

// A Result is what became of a Probe. At and Seen are set if an endpoint got it.
type Result struct {
	Verdict Verdict
	By      *Station       // the station that got it; nil: none
	At      netip.AddrPort // the address it arrived at
	Seen    netip.Addr     // the source address that it saw
}

// done reports whether nothing more can come.
func (r Result) done() bool {
	return r.Verdict >= Reset || r.Verdict != Silence && r.By != nil
}

// A Field is a network's stations. It belongs to one goroutine at a time.
type Field struct {
	epoll    int
	taps     map[int32]*tap
	stations map[string]*Station
	next     uint32
	shots    map[uint32]*shot // of the Fire that runs, by id
	open     int              // likely ones that are not done
	buf, oob []byte

	sctpPorts []uint16
}

// A shot is a probe that was sent.
type shot struct {
	Probe
	Result
}

// New returns a Field without stations. It answers SCTP on those ports of all of them.
func New(sctpPorts ...uint16) (*Field, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &Field{
		epoll: fd, taps: map[int32]*tap{}, stations: map[string]*Station{}, next: firstID,
		buf: make([]byte, 4096), oob: make([]byte, 512), sctpPorts: sctpPorts,
	}, nil
}

// Close closes all sockets.
func (f *Field) Close() {
	for fd := range f.taps {
		_ = unix.Close(int(fd))
	}
	for _, s := range f.stations {
		for _, fd := range s.out {
			_ = unix.Close(fd)
		}
	}
	_ = unix.Close(f.epoll)
}

// Ports are the source ports; ids come back after so many.
const (
	firstPort, ports = 10000, 50000
	firstID          = 1 << 20
)

func portOf(id uint32) uint16 { return uint16(firstPort + id%ports) }

// MaxProbes is how many a Fire takes: each has its own source port.
const MaxProbes = ports

// Fire sends the probes and returns what became of them, in their order. It waits up to
// patience for the likely ones, and so long as quiet for the others.
func (f *Field) Fire(probes []Probe, patience, quiet time.Duration) ([]Result, error) {
	if len(probes) > MaxProbes {
		return nil, fmt.Errorf("fire %d probes: at most %d", len(probes), MaxProbes)
	}
	first := f.next
	f.next += uint32(len(probes))
	if f.next > 1<<31 {
		f.next = firstID
	}
	f.shots, f.open = make(map[uint32]*shot, len(probes)), 0
	all := make([]shot, len(probes))
	for i, p := range probes {
		id := first + uint32(i)
		all[i] = shot{Probe: p}
		f.shots[id] = &all[i]
		if p.Likely {
			f.open++
		}
		if err := p.From.send(p, id); err != nil {
			return nil, err
		}
		if i%32 == 31 {
			if err := f.drain(0); err != nil {
				return nil, err
			}
		}
	}
	sent := time.Now()
	for {
		left := quiet - time.Since(sent)
		if f.open > 0 {
			left = patience - time.Since(sent)
		}
		if left <= 0 {
			break
		}
		if err := f.drain(min(left, 20*time.Millisecond)); err != nil {
			return nil, err
		}
	}
	out := make([]Result, len(all))
	for i := range all {
		out[i] = all[i].Result
	}
	return out, nil
}

// shotOf returns the shot of an id, or of a client's port.
func (f *Field) shotOf(id uint32) *shot { return f.shots[id] }

func (f *Field) shotFrom(at *Station, port uint16) *shot {
	// ids are consecutive and fewer than ports, so a port says which it is.
	last := f.next - 1
	back := (uint32(portOf(last)) + ports - uint32(port)) % ports
	if s := f.shots[last-back]; s != nil && s.From == at && portOf(last-back) == port {
		return s
	}
	return nil
}

// note changes a shot's result.
func (f *Field) note(s *shot, change func(*Result)) {
	was := s.done()
	change(&s.Result)
	if !was && s.done() && s.Likely {
		f.open--
	}
}

// arrived notes that an endpoint got the probe.
func (f *Field) arrived(s *shot, by *Station, at netip.AddrPort, from netip.Addr) {
	f.note(s, func(r *Result) { r.By, r.At, r.Seen = by, at, from })
}

// told notes what a client got.
func (f *Field) told(s *shot, v Verdict, by netip.AddrPort) {
	if v == Answered && by != s.To {
		v = Past
	}
	f.note(s, func(r *Result) {
		if r.Verdict == Silence {
			r.Verdict = v
		}
	})
}

// drain reads everything that is there; it waits for the first.
func (f *Field) drain(wait time.Duration) error {
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(f.epoll, events[:], int(wait.Round(time.Millisecond).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, e := range events[:n] {
			if err := f.taps[e.Fd].read(f); err != nil {
				return err
			}
		}
		if n < len(events) {
			return nil
		}
		wait = 0
	}
}
