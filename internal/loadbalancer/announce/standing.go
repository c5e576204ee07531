package announce

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Standing is how a node's speaker stands to others now, as it says itself: to a router, or to the voters, without
// whose grants the node's kernel mutes it on its own networks.
type Standing struct {
	Node   string    `json:"node"`
	Peer   string    `json:"peer,omitempty"` // the BGPPeer; empty: the voters
	Up     bool      `json:"up"`             // the session is; or a majority grants
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"` // why it is not
}

// An Overview is who announces which addresses, and how the speakers stand.
type Overview struct {
	Addresses []AddressReport `json:"addresses"`
	Speakers  []Standing      `json:"speakers"` // sorted by node and peer
	Problems  []string        `json:"problems"` // of the configuration
}

// Said is what the speakers say of themselves.
type Said struct {
	Held      []Holding
	Standings []Standing
}

// down returns the standing of a node that is not up; false: it is, or nothing is known of it.
func (s Said) down(node, peer string) (Standing, bool) {
	i := slices.IndexFunc(s.Standings, func(x Standing) bool { return x.Node == node && x.Peer == peer && !x.Up })
	if i < 0 {
		return Standing{}, false
	}
	return s.Standings[i], true
}

// Related returns the Services of these names, and those that share an address with one of them: about their addresses
// nothing else decides.
func Related(all []*Service, names []api.Name) (some []*Service) {
	addrs := map[netip.Addr]bool{}
	for _, s := range all {
		if slices.Contains(names, s.Name) {
			for _, a := range s.Addrs {
				addrs[a] = true
			}
		}
	}
	for _, s := range all {
		if slices.Contains(names, s.Name) || slices.ContainsFunc(s.Addrs, func(a netip.Addr) bool { return addrs[a] }) {
			some = append(some, s)
		}
	}
	return some
}
