package layer2

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/arp"
)

type probeResult struct {
	addr  netip.Addr
	mac   arp.MAC
	taken bool
}

// probeTime is how long it is asked whether another machine has a new address.
const probeTime = 600 * time.Millisecond

// probeAgain is when an address is looked at again that another machine had.
var probeAgain = 30 * time.Second

// probe asks, before an address is announced for the first time, whether another machine has it.
func (s *Speaker) probe(a netip.Addr, devices []string) {
	if s.probing[a] {
		return
	}
	s.probing[a] = s.tasks.TryGo(func() error { // else after one that ends
		ctx, cancel := context.WithTimeout(context.Background(), 2*probeTime)
		defer cancel()
		mac, taken := s.arp.Probe(ctx, a, devices, probeTime)
		select {
		case s.probed <- probeResult{a, mac, taken}:
		case <-time.After(probeTime): // the loop has ended
		}
		return nil
	})
}

func (s *Speaker) probeDone(r probeResult) {
	delete(s.probing, r.addr)
	if r.taken {
		s.taken[r.addr] = time.Now().Add(probeAgain)
		s.cfg.Metrics.conflicts.Inc()
		for _, name := range s.servicesOf(r.addr) {
			s.cfg.Event(name, api.Problem{Reason: "announceFailed", Message: fmt.Sprintf(
				"%v is not announced: the machine with the MAC %v has it [take it out of the pool, or off that machine]", r.addr, r.mac)})
		}
		return
	}
	delete(s.taken, r.addr)
	delete(s.unannounced, r.addr)
	s.announce()
}

// servicesOf returns the Services that have an address.
func (s *Speaker) servicesOf(a netip.Addr) []api.Name {
	if d := s.decisions[a]; d != nil {
		return d.Services
	}
	return nil
}
