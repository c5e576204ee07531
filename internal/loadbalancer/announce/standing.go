package announce

import (
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Standing is the state of a node's speaker in its own words: of the session with a router, or of its grants from the
// voters. Without a majority of grants the node's kernel mutes the speaker on its own networks.
type Standing struct {
	Node   string    `json:"node"`
	Peer   string    `json:"peer,omitempty"` // the BGPPeer; empty: the voters
	Up     bool      `json:"up"`             // the session is up; or a majority grants
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"` // empty if Up
}

// An Overview has the announcers of all addresses, and the state of the speakers.
type Overview struct {
	Addresses []AddressReport `json:"addresses"`
	Speakers  []Standing      `json:"speakers"` // sorted by node and peer
	Problems  []string        `json:"problems"` // of the configuration
}

// Said has the speakers' own statements.
type Said struct {
	Held      []Holding
	Standings []Standing
}

// down returns the standing of a node that is not up; false if it is up or unknown.
func (s Said) down(node, peer string) (Standing, bool) {
	i := slices.IndexFunc(s.Standings, func(x Standing) bool { return x.Node == node && x.Peer == peer && !x.Up })
	if i < 0 {
		return Standing{}, false
	}
	return s.Standings[i], true
}

// Related returns the Services of these names, and the Services that share an address with one of them. No other Service
// affects the decision about their addresses.
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
