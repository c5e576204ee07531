package announce

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Standing is the state of a node's speaker in its own words: of the session with a router, of an address that the
// speaker refuses to announce by layer 2, or of its grants from the voters. Without a majority of grants the node's
// kernel mutes the speaker on its own networks.
type Standing struct {
	Node  string     `json:"node"`
	Peer  string     `json:"peer,omitempty"`   // the BGPPeer; empty: an address, or the voters
	Addr  netip.Addr `json:"address,omitzero"` // the refused address; never Up
	Up    bool       `json:"up"`               // the session is up; or a majority grants
	Since time.Time  `json:"since,omitzero"`
	// Reason says why the standing is not Up. If a majority grants, it says why the node does not announce all of
	// its addresses; empty: it does.
	Reason string `json:"reason,omitempty"`
}

// CompareStandings orders standings by node, peer and address.
func CompareStandings(a, b Standing) int {
	return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Peer, b.Peer), a.Addr.Compare(b.Addr))
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

// standings are the standings by node.
type standings map[string][]Standing

func (s standings) of(node, peer string, a netip.Addr) (Standing, bool) {
	i := slices.IndexFunc(s[node], func(x Standing) bool { return x.Peer == peer && x.Addr == a })
	if i < 0 {
		return Standing{}, false
	}
	return s[node][i], true
}

// down returns the standing of a node that is not up; false if it is up or unknown. Without a peer it is the standing with
// the voters.
func (s standings) down(node, peer string) (Standing, bool) {
	x, ok := s.of(node, peer, netip.Addr{})
	return x, ok && !x.Up
}

// whyNot returns why a node's speaker does not announce an address by layer 2, in its own words; empty: it does not say.
func (s standings) whyNot(node string, a netip.Addr) (reason string, since time.Time) {
	voters, _ := s.of(node, "", netip.Addr{})
	refusal, refuses := s.of(node, "", a)
	switch {
	case voters.Reason != "" && !voters.Up:
		return muted + voters.Reason, voters.Since
	case refuses:
		return refused + refusal.Reason, refusal.Since
	case voters.Reason != "":
		return lacking + voters.Reason, time.Time{}
	}
	return "", time.Time{}
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
