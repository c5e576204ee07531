package layer2

import (
	"maps"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// leaving is how long a node that must not announce an address any more waits for the next
// owner: the old one serves what still arrives, and there is no moment without an answer.
const leaving = time.Second

// A claimView is what claims are made of.
type claimView struct {
	self      string
	decisions map[netip.Addr]*announce.Decision
	out       map[string]bool // nodes that are silent or not ready
	dead      map[string]bool // those of them that are dead
	granted   func(netip.Addr) bool
	contested map[netip.Addr]bool      // another node asks for it
	served    func(uint16) bool        // the node's proxy serves the Service of that health check
	since     map[netip.Addr]time.Time // since when another node should have it
	formers   *formers                 // are told whose the addresses are
	now       time.Time
}

// claims returns the addresses that the node asks for: those that are its own by the decision,
// and those that it holds until the node whose they are asks for them. moved: one is another node's than before.
func (v claimView) claims() (all []netip.Addr, moved bool) {
	for a, d := range v.decisions {
		owner, ok := v.owner(d)
		if ok && v.formers.owned(d, owner.Node, v.dead) {
			moved = true
		}
		switch mine := ok && owner.Node == v.self; {
		case mine && v.servedAll(d):
			delete(v.since, a)
			all = append(all, a)
		case v.retains(a, d, ok):
			all = append(all, a)
		default:
			delete(v.since, a)
		}
	}
	gone := func(a netip.Addr) bool { return v.decisions[a] == nil }
	maps.DeleteFunc(v.since, func(a netip.Addr, _ time.Time) bool { return gone(a) })
	return all, moved
}

// owner returns whose an address is: of the nodes that are ready the best, else of those that are
// not dead, so that an address has an owner also where all nodes have just been cut off.
func (v claimView) owner(d *announce.Decision) (announce.Candidate, bool) {
	if c, ok := d.Owner(v.out); ok {
		return c, true
	}
	return d.Owner(v.dead)
}

// retains reports whether the node keeps an address that is not its own.
func (v claimView) retains(a netip.Addr, d *announce.Decision, another bool) bool {
	if !another || !v.granted(a) || v.contested[a] {
		return false
	}
	if _, candidate := d.Candidate(v.self); candidate && !v.out[v.self] && v.servedAll(d) {
		return true // as good as the other one, until that one is ready
	}
	if v.since[a].IsZero() {
		v.since[a] = v.now
	}
	return v.now.Sub(v.since[a]) < leaving
}

// servedAll reports whether the node's proxy serves all Services of the address that only
// serve where they have endpoints.
func (v claimView) servedAll(d *announce.Decision) bool {
	for _, port := range d.Checks {
		if !v.served(port) {
			return false
		}
	}
	return true
}
