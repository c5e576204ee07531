package layer2

import (
	"maps"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// leaveTime is how long a node that must not announce an address any more waits for the next owner. The node serves the
// packets that still arrive, so that the address always has an owner.
const leaveTime = time.Second

// A claimView is the input of a node's claims.
type claimView struct {
	self         string
	decisions    map[netip.Addr]*announce.Decision
	out          map[string]bool // nodes that are silent or excluded
	dead         map[string]bool // nodes of out that are dead
	granted      func(netip.Addr) bool
	contested    map[netip.Addr]bool      // another node asks for the address
	served       func(uint16) bool        // this node's proxy serves the Service with that healthCheckNodePort
	leavingSince map[netip.Addr]time.Time // when another node should have taken over; claims updates it
	forwarding   *forwarding              // claims tells it the owners
	unserved     map[netip.Addr]uint16    // claims adds this node's addresses that the proxy does not serve, with a port of Checks
	now          time.Time
}

// claims returns the addresses that this node asks for: the addresses that it owns by decision, and addresses that it
// holds until their owner asks for them. ownersChanged says that an address has another owner than at the last call.
func (v claimView) claims() (all []netip.Addr, ownersChanged bool) {
	for a, d := range v.decisions {
		owner, ok := v.owner(d)
		if ok && v.forwarding.setOwner(d, owner.Node, v.dead) {
			ownersChanged = true
		}
		mine, unserved := ok && owner.Node == v.self, uint16(0)
		if mine {
			if unserved = v.unservedPort(d); unserved != 0 {
				v.unserved[a] = unserved
			}
		}
		switch {
		case mine && unserved == 0:
			delete(v.leavingSince, a)
			all = append(all, a)
		case v.retains(a, d, ok):
			all = append(all, a)
		default:
			delete(v.leavingSince, a)
		}
	}
	maps.DeleteFunc(v.leavingSince, func(a netip.Addr, _ time.Time) bool { return v.decisions[a] == nil })
	return all, ownersChanged
}

// owner returns the best candidate that is not out. If all candidates are out, it returns the best one that is not
// dead, so that an address has an owner even if all nodes were just cut off.
func (v claimView) owner(d *announce.Decision) (announce.Candidate, bool) {
	if c, ok := d.Owner(v.out); ok {
		return c, true
	}
	return d.Owner(v.dead)
}

// retains reports whether this node keeps an address that it does not own. hasOwner says that the address has one.
func (v claimView) retains(a netip.Addr, d *announce.Decision, hasOwner bool) bool {
	if !hasOwner || !v.granted(a) || v.contested[a] {
		return false
	}
	if _, candidate := d.Candidate(v.self); candidate && !v.out[v.self] && v.unservedPort(d) == 0 {
		return true // this node serves as well as the owner, until the owner asks
	}
	if v.leavingSince[a].IsZero() {
		v.leavingSince[a] = v.now
	}
	return v.now.Sub(v.leavingSince[a]) < leaveTime
}

// unservedPort returns a healthCheckNodePort of the address's Services at which the node's proxy does not confirm that
// it serves the Service; 0: it serves all.
func (v claimView) unservedPort(d *announce.Decision) uint16 {
	for _, port := range d.Checks {
		if !v.served(port) {
			return port
		}
	}
	return 0
}
