package election

import (
	"slices"
	"strings"
	"time"
)

// maxVoters vote where there are more nodes: what is sent grows with the nodes, not with
// their square.
const maxVoters = 7

// seats is how many nodes vote, of so many: an odd number, because an even one bears no more
// failures than the odd one below it.
func seats(nodes int) int {
	switch {
	case nodes <= 2:
		return nodes
	case nodes >= maxVoters:
		return maxVoters
	}
	return nodes - 1 + nodes%2
}

// A Roll is what is known of the nodes when the next list of voters is made.
type Roll struct {
	Nodes []string // all there are, sorted
	// Speaking are those heard lately, and Silent those that were not heard for so long that
	// they should not vote.
	Speaking, Silent map[string]bool
	// Listed: one of those heard has a list of voters.
	Listed bool
}

// First returns the first list: of all that speak, as many as have seats. Nothing was promised before it,
// so that it need not begin with one voter. false: there is a list somewhere, which its members write.
func First(r Roll) (first Voters, ok bool) {
	for _, n := range r.Nodes {
		if r.Speaking[n] {
			first.Names = append(first.Names, n)
		}
	}
	if r.Listed || len(first.Names) == 0 {
		return Voters{}, false
	}
	slices.Sort(first.Names)
	if first.Names = first.Names[:seats(len(first.Names))]; len(first.Names) == 2 {
		first.Names = append([]string{LeaseVoter}, first.Names...)
	}
	first.Epoch = 1
	return first, true
}

// Next returns the list that follows, which differs by one voter; false: v stays.
func (v Voters) Next(r Roll) (next Voters, changed bool) {
	names, changed := v.next(r)
	if !changed {
		return v, false
	}
	slices.Sort(names)
	return Voters{Epoch: v.Epoch + 1, Names: names}, true
}

func (v Voters) next(r Roll) (names []string, changed bool) {
	nodes := 0 // that vote or could
	for _, n := range r.Nodes {
		if r.Speaking[n] || slices.Contains(v.Names, n) && !r.Silent[n] {
			nodes++
		}
	}
	var voters []string
	for _, n := range v.Names {
		if n != LeaseVoter {
			voters = append(voters, n)
		}
	}
	lease := len(voters) != len(v.Names)
	drop := func(name string) []string {
		return slices.DeleteFunc(slices.Clone(v.Names), func(n string) bool { return n == name })
	}
	add := func(name string) []string { return append(slices.Clone(v.Names), name) }
	if lease && seats(nodes) > 2 {
		return drop(LeaseVoter), true
	}
	for _, n := range voters {
		if !slices.Contains(r.Nodes, n) && len(voters) > 1 {
			return drop(n), true
		}
	}
	if len(voters) < seats(nodes) {
		for _, n := range r.Nodes {
			if r.Speaking[n] && !slices.Contains(voters, n) {
				return add(n), true
			}
		}
	}
	for _, n := range voters { // another node can have its seat
		if r.Silent[n] && nodes >= len(voters) && len(voters) > 2 {
			return drop(n), true
		}
	}
	switch {
	case len(voters) > max(1, seats(nodes)) && len(voters) > 3:
		return drop(voters[len(voters)-1]), true
	case len(voters) == 2 && !lease:
		return add(LeaseVoter), true
	case len(voters) < 2 && lease:
		return drop(LeaseVoter), true
	}
	return nil, false
}

// early returns the nodes that hear all others as long as there is no list of voters: one of them makes
// the first. They are few, as voters are.
func (m *Member) early() map[nodeID]bool {
	if m.voters.Epoch > 0 {
		return nil
	}
	all := m.ordered(func(*peer) bool { return true })
	slices.SortFunc(all, func(a, b *peer) int { return strings.Compare(a.name, b.name) })
	early := map[nodeID]bool{}
	for _, p := range all[:min(len(all), maxVoters)] {
		early[p.id] = true
	}
	return early
}

// Roll returns what this member knows of the nodes. silent is after how long without a word a
// node should not vote.
func (m *Member) Roll(nodes []string, silent time.Duration) Roll {
	r := Roll{Nodes: nodes, Speaking: map[string]bool{m.cfg.Self: true}, Silent: map[string]bool{}}
	for id, p := range m.peers {
		if id == m.self {
			continue
		}
		c := m.voter.claimants[id]
		lastSeen := m.cfg.Start
		if c != nil {
			lastSeen = c.lastSeen
		}
		if c != nil && m.now-lastSeen <= m.silence() {
			r.Speaking[p.name] = true
			r.Listed = r.Listed || c.epoch > 0
		} else if m.now-lastSeen > silent {
			r.Silent[p.name] = true
		}
	}
	return r
}

// Adopted reports whether a majority of the voters has the present list, and has had it for
// long enough that no grant of the list before lasts. Only then there may be a next one.
func (m *Member) Adopted() bool {
	n := 0
	for id, o := range m.owner.latest {
		if p := m.peers[id]; p != nil && p.vote && o.epoch == m.voters.Epoch && m.now-o.since > 2*m.silence() && m.now-o.at <= m.silence() {
			n++
		}
	}
	if m.leaseVotes(m.now) {
		n++
	}
	return n > 0 && n >= m.voters.majority()
}
