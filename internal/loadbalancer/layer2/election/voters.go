package election

import (
	"slices"
	"strings"
	"time"
)

// maxVoters bounds the voters, so that the number of messages grows with the nodes, not with their square.
const maxVoters = 7

// seats returns the number of voters for a number of nodes. It is odd, because one voter more does not help against
// another failure.
func seats(nodes int) int {
	switch {
	case nodes <= 2:
		return nodes
	case nodes >= maxVoters:
		return maxVoters
	}
	return nodes - 1 + nodes%2
}

// A Roll is the input of the next list of voters.
type Roll struct {
	Nodes []string // all nodes, sorted
	// Speaking nodes were heard lately. Silent nodes were not heard for so long that they should not vote.
	Speaking, Silent map[string]bool
	// Listed says that a speaking node has a list of voters.
	Listed bool
}

// First returns the first list: the first speaking nodes, as many as there are seats. Nothing was promised before, so the
// list need not begin with one voter. It returns false if a node has a list already, whose members write it.
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

// Next returns the list that follows v and differs by one voter; false: v stays.
func (v Voters) Next(r Roll) (next Voters, changed bool) {
	names, changed := v.next(r)
	if !changed {
		return v, false
	}
	slices.Sort(names)
	return Voters{Epoch: v.Epoch + 1, Names: names}, true
}

// next returns the names of the list that follows v, unsorted.
func (v Voters) next(r Roll) (names []string, changed bool) {
	nodes := 0 // nodes that vote or could vote
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
	for _, n := range voters { // another node can have the seat
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

// listMakers returns the nodes that receive all heartbeats while there is no list of voters. One of them makes the first
// list. They are at most as many as voters.
func (m *Member) listMakers() map[nodeID]bool {
	if m.voters.Epoch > 0 {
		return nil
	}
	all := m.ordered(func(*peer) bool { return true })
	slices.SortFunc(all, func(a, b *peer) int { return strings.Compare(a.name, b.name) })
	makers := map[nodeID]bool{}
	for _, p := range all[:min(len(all), maxVoters)] {
		makers[p.id] = true
	}
	return makers
}

// Roll returns this member's knowledge of the nodes. silent is the silence after which a node should not vote.
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

// Adopted reports whether a majority of the voters has had the present list long enough that no grant of the list before
// it lasts. Only then may there be a next list.
func (m *Member) Adopted() bool {
	n := 0
	for id, o := range m.owner.latest {
		if p := m.peers[id]; p != nil && p.votes && o.epoch == m.voters.Epoch && m.now-o.since > 2*m.silence() && m.now-o.at <= m.silence() {
			n++
		}
	}
	if m.leaseVotes(m.now) {
		n++
	}
	return n > 0 && n >= m.voters.majority()
}
