package layer2

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// maxRefusals bounds the refusals that a node reports, because its ConfigurationState has a line for each.
const maxRefusals = 32

// unservedPatience is how long a node's proxy may need until it serves a Service, without a report.
const unservedPatience = 5 * time.Second

// A refusals knows the addresses that this node should announce and does not, with the reasons.
type refusals struct {
	all      map[netip.Addr]announce.Standing
	unserved map[netip.Addr]time.Time // the node's proxy does not serve all Services of the address, since then
	changed  bool                     // since the last report
}

func newRefusals() refusals {
	return refusals{all: map[netip.Addr]announce.Standing{}, unserved: map[netip.Addr]time.Time{}}
}

// add records a refusal, and reports whether the reason is new.
func (r *refusals) add(node string, a netip.Addr, reason string) bool {
	if r.all[a].Reason == reason {
		return false
	}
	r.all[a] = announce.Standing{Node: node, Addr: a, Since: time.Now(), Reason: reason}
	r.changed = true
	return true
}

// remove records that an address is announced, or that this node should not announce it.
func (r *refusals) remove(a netip.Addr) {
	if _, ok := r.all[a]; ok {
		delete(r.all, a)
		r.changed = true
	}
}

// keep removes the refusals of addresses that this node does not want. unserved are the addresses that the node's proxy
// keeps the node from wanting, with a port at which the proxy does not confirm a Service.
func (r *refusals) keep(node string, want []netip.Addr, unserved map[netip.Addr]uint16, now time.Time) {
	maps.DeleteFunc(r.unserved, func(a netip.Addr, _ time.Time) bool { return unserved[a] == 0 })
	for a, port := range unserved {
		if r.unserved[a].IsZero() {
			r.unserved[a] = now
		}
		if now.Sub(r.unserved[a]) >= unservedPatience {
			r.add(node, a, fmt.Sprintf("its proxy does not confirm at port %d (healthCheckNodePort) that it serves the Service [is the node's agent ready?]", port))
		}
	}
	if len(r.all) == 0 {
		return
	}
	wanted := make(map[netip.Addr]bool, len(want))
	for _, a := range want {
		wanted[a] = true
	}
	for a := range r.all {
		if !wanted[a] && r.unserved[a].IsZero() {
			r.remove(a)
		}
	}
}

// report returns the first refusals by address; false: they are those of the last call.
func (r *refusals) report() ([]announce.Standing, bool) {
	if !r.changed {
		return nil, false
	}
	r.changed = false
	all := slices.SortedFunc(maps.Values(r.all), announce.CompareStandings)
	return all[:min(len(all), maxRefusals)], true
}

// refuse records why this node does not announce an address, and tells the owners of the address's Services once.
func (s *Speaker) refuse(a netip.Addr, reason string) {
	if !s.refusals.add(s.cfg.Node, a, reason) {
		return
	}
	for _, name := range s.servicesOf(a) {
		s.cfg.Event(name, api.Problem{Reason: "announceFailed", Message: fmt.Sprintf("%v is not announced: %s", a, reason)})
	}
}

// reportRefusals reports the refusals if they have changed.
func (s *Speaker) reportRefusals() {
	if s.cfg.Refused == nil {
		return
	}
	if all, changed := s.refusals.report(); changed {
		s.cfg.Refused(all)
	}
}
