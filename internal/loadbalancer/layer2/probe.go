package layer2

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/arp"
)

const (
	// probeTime is how long a probe waits for another machine's answer.
	probeTime = 600 * time.Millisecond
	// newFor is how long after its appearance an address counts as new to the cluster.
	newFor = 10 * time.Second
)

// probeRetry is the pause before a probe of an address that another machine had. A variable for tests.
var probeRetry = 30 * time.Second

// A probes knows which addresses another machine may have. The node asks before it announces a new address.
type probes struct {
	appeared map[netip.Addr]time.Time // addresses that perhaps no node has announced yet
	running  map[netip.Addr]bool
	taken    map[netip.Addr]time.Time // another machine has the address; time of the next probe
	results  chan probeResult
}

type probeResult struct {
	addr  netip.Addr
	mac   arp.MAC
	taken bool
}

func newProbes() probes {
	return probes{appeared: map[netip.Addr]time.Time{}, running: map[netip.Addr]bool{}, taken: map[netip.Addr]time.Time{}, results: make(chan probeResult, 16)}
}

// forget forgets the addresses without a decision.
func (p *probes) forget(decisions map[netip.Addr]*announce.Decision) {
	gone := func(a netip.Addr, _ time.Time) bool { return decisions[a] == nil }
	maps.DeleteFunc(p.appeared, gone)
	maps.DeleteFunc(p.taken, gone)
}

// mustProbe reports whether an address must not be announced before a probe has ended, and starts the probe.
func (s *Speaker) mustProbe(a netip.Addr, devices []string) bool {
	at, perhapsNew := s.probes.appeared[a]
	switch {
	case !perhapsNew:
		return false
	case time.Since(at) < newFor || s.probes.running[a] || !s.probes.taken[a].IsZero():
		s.probe(a, devices)
		return true
	}
	delete(s.probes.appeared, a)
	return false
}

// probe asks whether another machine has an address.
func (s *Speaker) probe(a netip.Addr, devices []string) {
	if s.probes.running[a] {
		return
	}
	s.probes.running[a] = s.tasks.TryGo(func() error { // if there are too many, a probe that ends starts this one
		ctx, cancel := context.WithTimeout(context.Background(), 2*probeTime)
		defer cancel()
		mac, taken := s.arp.Probe(ctx, a, devices, probeTime)
		select {
		case s.probes.results <- probeResult{a, mac, taken}:
		case <-time.After(probeTime): // the loop has ended
		}
		return nil
	})
}

// takeProbe announces the address, or tells the owners of its Services that another machine has it.
func (s *Speaker) takeProbe(r probeResult) {
	delete(s.probes.running, r.addr)
	if r.taken {
		s.probes.taken[r.addr] = time.Now().Add(probeRetry)
		s.cfg.Metrics.conflicts.Inc()
		s.refuse(r.addr, fmt.Sprintf("the machine with the MAC %v has it [take it out of the pool, or off that machine]", r.mac))
		return
	}
	delete(s.probes.taken, r.addr)
	delete(s.probes.appeared, r.addr)
	s.announce()
}

// servicesOf returns the Services that have an address.
func (s *Speaker) servicesOf(a netip.Addr) []api.Name {
	if d := s.decisions[a]; d != nil {
		return d.Services
	}
	return nil
}
