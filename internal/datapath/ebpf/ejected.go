package ebpf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath"
)

// reasons are the texts of the reasons in connect.c.
var reasons = map[uint8]string{1: "refused", 2: "no answer"}

// The agent tries each ejected endpoint itself, because a failed connection may be the client's fault: a network policy
// denies only some clients. An answer to the first try ends the ejection and makes the endpoint trusted for a time that
// doubles with each false alarm. A later answer ends it at once.
const (
	firstTrust = 4 * time.Second
	maxTrust   = time.Minute
	maxProbes  = 64 // at the same time
	maxAlarms  = 4096
	// probeTime is how long an endpoint may take to answer.
	probeTime = time.Second
)

// A suspect is an ejected endpoint. Its times are of the kernel's clock.
type suspect struct {
	ejection datapath.Ejection
	since    uint64
	fd       int    // of the probe's socket; -1: none
	begun    uint64 // the probe
	failed   bool   // a probe has failed
	trusted  uint64 // until then; 0: not trusted
}

// suspects are the ejected endpoints of a node. The zero value has none.
type suspects struct {
	counted uint64 // ejections when the map was read last
	all     map[connectAddr]*suspect
	alarms  map[connectAddr]int // false alarms in a row
}

// Ejected implements datapath.Datapath. The agent's process returns only endpoints that do not answer the agent either.
// Another process returns all.
func (d *Datapath) Ejected(context.Context) ([]datapath.Ejection, error) {
	at, err := now()
	if err != nil {
		return nil, err
	}
	if d.prog == nil {
		return ejectedIn(d.pins(), at)
	}
	if err := d.suspects.update(d.prog, at); err != nil {
		return nil, fmt.Errorf("read ejected endpoints: %w", err)
	}
	var out []datapath.Ejection
	probes := 0
	for a, s := range d.suspects.all {
		if s.trusted > at {
			continue
		}
		if s.answered(at) {
			if err := d.suspects.acquit(d.prog, a, at); err != nil {
				return nil, fmt.Errorf("trust the endpoint %v: %w", s.ejection.Endpoint, err)
			}
			continue
		}
		if s.failed {
			out = append(out, s.ejection)
		}
		if probes++; probes <= maxProbes {
			s.probe(at)
		}
	}
	sortEjections(out)
	return out, nil
}

// update reads all endpoints if there was an ejection since the last call, or else the ejected ones.
func (s *suspects) update(p *programs, at uint64) error {
	var counted uint64
	if err := p.Ejections.Lookup(uint32(0), &counted); err != nil {
		return err
	}
	if first := s.all == nil; counted != s.counted || first {
		if first {
			s.all, s.alarms = map[connectAddr]*suspect{}, map[connectAddr]int{}
		}
		s.counted = counted
		return readAll(p.Endpoints, func(a connectAddr, e connectEndpoint) { s.note(a, &e, at, first) })
	}
	for a := range s.all {
		var e connectEndpoint
		if err := p.Endpoints.Lookup(a, &e); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		s.note(a, &e, at, false)
	}
	return nil
}

// note compares an endpoint with the suspects. An ejection that the last process has left counts as confirmed.
func (s *suspects) note(a connectAddr, e *connectEndpoint, at uint64, confirmed bool) {
	known := s.all[a]
	if known != nil && e.ejected(at) && known.since == e.Since {
		return
	}
	if known != nil {
		known.close()
		delete(s.all, a)
	}
	if e.ejected(at) {
		s.all[a] = &suspect{ejection: e.ejection(a.addrPort(), at), since: e.Since, fd: -1, failed: confirmed}
	}
}

// acquit ends the ejection of an endpoint that has answered.
func (s *suspects) acquit(p *programs, a connectAddr, at uint64) error {
	trust, one := firstTrust, s.all[a]
	if one.failed { // it has recovered
		delete(s.alarms, a)
	} else {
		if len(s.alarms) >= maxAlarms {
			clear(s.alarms)
		}
		trust = min(firstTrust<<min(s.alarms[a], 8), maxTrust)
		s.alarms[a]++
	}
	one.trusted, one.failed = at+uint64(trust), false
	return p.Trusted.Put(a, one.trusted)
}

// close ends all probes.
func (s *suspects) close() {
	for _, one := range s.all {
		one.close()
	}
	*s = suspects{}
}

// probe begins to connect to the endpoint, unless a probe is on its way. The next call of Ejected reads the result.
func (s *suspect) probe(at uint64) {
	if s.fd >= 0 {
		return
	}
	addr := s.ejection.Endpoint.Addr()
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(s.ejection.Endpoint.Port()), Addr: addr.As16()})
	if addr.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(s.ejection.Endpoint.Port()), Addr: addr.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return // the next call tries again
	}
	s.fd, s.begun = fd, at
	if err := unix.Connect(fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		s.failed = true
		s.close()
	}
}

// answered reports whether the endpoint has accepted the probe. A probe that is refused, or takes too long, has failed.
func (s *suspect) answered(at uint64) bool {
	if s.fd < 0 {
		return false
	}
	events := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(events, 0)
	if err == nil && n == 0 && at-s.begun < uint64(probeTime) {
		return false
	}
	code, optErr := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	s.close()
	if err == nil && optErr == nil && n == 1 && code == 0 {
		return true
	}
	s.failed = true
	return false
}

func (s *suspect) close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd)
		s.fd = -1
	}
}

func sortEjections(all []datapath.Ejection) {
	slices.SortFunc(all, func(a, b datapath.Ejection) int { return a.Endpoint.Compare(b.Endpoint) })
}

// ejectedIn returns the ejected endpoints in pinned maps.
func ejectedIn(pins string, at uint64) (out []datapath.Ejection, err error) {
	m, err := openMaps(pins, "settings", "endpoints", "trusted")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the maps of connect time: %w", err)
	}
	defer m.close()
	if known, err := m.known(); err != nil || !known {
		return nil, err
	}
	err = readAll(m["endpoints"], func(a connectAddr, e connectEndpoint) {
		var until uint64
		if e.ejected(at) && (m["trusted"].Lookup(a, &until) != nil || until < at) {
			out = append(out, e.ejection(a.addrPort(), at))
		}
	})
	sortEjections(out)
	return out, err
}

// ejected reports whether an endpoint gets no sockets, and none is trying it.
func (e *connectEndpoint) ejected(at uint64) bool { return e.Until > at && e.Trying == 0 }

// ejection describes an ejected endpoint.
func (e *connectEndpoint) ejection(a netip.AddrPort, at uint64) datapath.Ejection {
	clock := time.Now().Add(-time.Duration(at))
	wall := func(t uint64) time.Time { return clock.Add(time.Duration(t)).Round(time.Second) }
	return datapath.Ejection{Endpoint: a, Reason: reasons[e.Reason], Since: wall(e.Since), Until: wall(e.Until), InARow: int(e.Ejections)}
}
