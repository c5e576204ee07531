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
	// Likely says that an answer or an arrival is expected, so Fire waits longer for it.
	Likely bool
}

// A Verdict is the answer that the client got.
type Verdict uint8

// The verdicts. Past is an answer from an address that the client did not call: the endpoint saw the client's own
// address, and its answer did not come through the node.
const (
	Silence Verdict = iota
	Answered
	Past
	Reset   // a TCP reset
	Refused // an ICMP error: port unreachable
	Lost    // any other ICMP error
)

// String returns the verdict as text.
func (v Verdict) String() string {
	return [...]string{"silence", "answered", "answered past the node", "reset", "refused", "unreachable"}[v]
}

// A Result is the result of a Probe. If an endpoint got the probe, At and Seen are set.
type Result struct {
	Verdict Verdict
	By      *Station       // the station that got the probe, or nil
	At      netip.AddrPort // the address that the probe arrived at
	Seen    netip.Addr     // the source address that the station saw
}

// done reports whether the result is complete.
func (r Result) done() bool {
	return r.Verdict >= Reset || r.Verdict != Silence && r.By != nil
}

// A Field has a network's stations. One goroutine at a time may use it.
type Field struct {
	epoll    int
	taps     map[int32]*tap
	stations map[string]*Station
	next     uint32
	shots    map[uint32]*shot // the shots of the running Fire, by id
	open     int              // number of likely shots that are not done
	buf, oob []byte

	sctpPorts []uint16
}

// A shot is a probe that was sent.
type shot struct {
	Probe
	Result
}

// New returns a Field without stations. All its stations answer SCTP on the given ports.
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

// The source ports. Ids repeat after as many probes.
const (
	firstPort, ports = 10000, 50000
	firstID          = 1 << 20
)

func portOf(id uint32) uint16 { return uint16(firstPort + id%ports) }

// MaxProbes is the most probes of one Fire, because each needs its own source port.
const MaxProbes = ports

// Fire sends the probes and returns their results in order. It waits up to patience for the likely ones, and up to
// quiet for the others.
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

// shotOf returns the shot with an id or with a client's port.
func (f *Field) shotOf(id uint32) *shot { return f.shots[id] }

func (f *Field) shotFrom(at *Station, port uint16) *shot {
	// Ids are consecutive and fewer than ports, so a port identifies the id.
	last := f.next - 1
	back := (uint32(portOf(last)) + ports - uint32(port)) % ports
	if s := f.shots[last-back]; s != nil && s.From == at && portOf(last-back) == port {
		return s
	}
	return nil
}

// note changes the result of a shot.
func (f *Field) note(s *shot, change func(*Result)) {
	was := s.done()
	change(&s.Result)
	if !was && s.done() && s.Likely {
		f.open--
	}
}

// arrived records that an endpoint got the probe.
func (f *Field) arrived(s *shot, by *Station, at netip.AddrPort, from netip.Addr) {
	f.note(s, func(r *Result) { r.By, r.At, r.Seen = by, at, from })
}

// told records the answer that a client got.
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

// drain waits for the first packet, and then reads all that are there.
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
