// Package read reads the rules that the kernel holds, in the words of iptables-save.
//
//	iptables-nft     kernel ── netlink: chains, then rules chain by chain ──→ xtables.Decode ──→ State
//	                 iptables-nft -S CHAIN ←── a chain with a rule that Decode does not know
//	iptables-legacy  iptables-legacy-save ──→ State
//
// It tells the chains of mode iptables (IsOurs) from other programs' chains, finds the hooks, and finds out which of
// the two iptables the node uses. It writes nothing. What the rules mean is known to package iptables.
package read

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// Families returns the IP families that the kernel has, as "is it IPv4?".
func Families() []bool {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return []bool{true}
	}
	return []bool{true, false}
}

// Family returns nf_tables' family.
func Family(is4 bool) nft.Family {
	if is4 {
		return nft.IPv4
	}
	return nft.IPv6
}

// A State has the rules of one variant and family.
type State struct {
	Chains  map[Chain][]string // our chains, with the text of their rules; a chain that does not exist is missing
	Hooks   []Hook             // rules in other chains that lead to ours, in their order
	Foreign map[string]int     // by table: rules, chains and policies of other programs

	rules     int            // of all programs
	kubelet   bool           // the kubelet uses this iptables
	allChains map[Chain]bool // of all programs
	uses      map[string]int // by table: the number of rules, plus the number of rules that jump to a chain
}

func newState() *State {
	return &State{Chains: map[Chain][]string{}, Foreign: map[string]int{}, allChains: map[Chain]bool{}, uses: map[string]int{}}
}

// add records one line of iptables-save's output.
func (s *State) add(l xtables.Line) {
	c := Chain{l.Table, l.Chain}
	switch l.Kind {
	case xtables.Table:
		s.Foreign[l.Table] += 0
	case xtables.Chain:
		s.allChains[c] = true
		s.kubelet = s.kubelet || l.Table == "mangle" && (l.Chain == "KUBE-IPTABLES-HINT" || l.Chain == "KUBE-KUBELET-CANARY")
		switch {
		case IsOurs(c):
			s.Chains[c] = []string{}
		case l.Text != "ACCEPT":
			s.Foreign[l.Table]++ // a chain of another program, or a policy
		}
	case xtables.Rule:
		s.rule(c, l.Text, xtables.Target(l.Text), 0)
	}
}

// rule records a rule of chain c. target is the rule's target, and handle the kernel's number of the rule, or 0.
func (s *State) rule(c Chain, text, target string, handle uint64) {
	s.rules++
	s.uses[c.Table]++
	if s.allChains[Chain{c.Table, target}] {
		s.uses[c.Table]++
	}
	switch {
	case IsOurs(c):
		s.Chains[c] = append(s.Chains[c], text)
	case IsOurs(Chain{c.Table, target}) && strings.HasSuffix(text, "-j "+target):
		s.Hooks = append(s.Hooks, Hook{c, text, handle})
	default:
		s.Foreign[c.Table]++
	}
}

// Save returns the output of a variant's and family's iptables-save program.
func Save(ctx context.Context, v xtables.Variant, is4 bool) (*State, error) {
	s := newState()
	return s, xtables.Save(ctx, v, is4, s.add)
}

// A Snapshot has the kernel's rules at one time. It reads each family of each variant once, when a caller needs it,
// because reading 10,000 Services takes a second.
type Snapshot struct {
	states map[ruleset]*State
	reader *Reader
}

// A ruleset identifies the rules of one variant and family.
type ruleset struct {
	variant xtables.Variant
	is4     bool
}

// NewSnapshot returns a Snapshot that has read nothing yet. It reads iptables-nft's rules with r.
func NewSnapshot(r *Reader) *Snapshot { return &Snapshot{map[ruleset]*State{}, r} }

// Of returns the rules of one variant and family.
func (s *Snapshot) Of(ctx context.Context, v xtables.Variant, is4 bool) (state *State, err error) {
	if state := s.states[ruleset{v, is4}]; state != nil {
		return state, nil
	}
	if v == xtables.NFT {
		state, err = s.reader.State(ctx, is4)
	} else {
		state, err = Save(ctx, v, is4)
	}
	if err != nil {
		return nil, err
	}
	s.states[ruleset{v, is4}] = state
	return state, nil
}

// All returns the rules of one variant, by family (IPv4?).
func (s *Snapshot) All(ctx context.Context, v xtables.Variant) (map[bool]*State, error) {
	all := map[bool]*State{}
	for _, is4 := range Families() {
		state, err := s.Of(ctx, v, is4)
		if err != nil {
			return nil, err
		}
		all[is4] = state
	}
	return all, nil
}

// Variant finds out which iptables the node uses. A variant with Fairway's or the kubelet's chains comes first, then
// the variant with more rules, then iptables-nft.
func (s *Snapshot) Variant(ctx context.Context) (xtables.Variant, error) {
	count := map[xtables.Variant]int{}
	var missing []error
	for _, v := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		state, err := s.Of(ctx, v, true)
		if errors.Is(err, exec.ErrNotFound) {
			missing = append(missing, err)
			continue
		}
		if err != nil {
			return xtables.NFT, err
		}
		count[v] = state.rules
		if state.Fairway() || state.kubelet {
			return v, nil
		}
	}
	if len(missing) == 2 {
		return xtables.NFT, errors.Join(missing...)
	}
	if count[xtables.Legacy] > count[xtables.NFT] {
		return xtables.Legacy, nil
	}
	return xtables.NFT, nil
}

// Fairway reports whether Fairway wrote the chains. Without the chain FAIRWAY they are kube-proxy's.
func (s *State) Fairway() bool { return s.Chains[Chain{NAT, xtables.FairwaySettings}] != nil }

// Found reports whether any variant has chains that Fairway wrote. A variant without installed programs has no chains.
func (s *Snapshot) Found(ctx context.Context) (bool, error) {
	for _, v := range []xtables.Variant{xtables.NFT, xtables.Legacy} {
		for _, is4 := range Families() {
			state, err := s.Of(ctx, v, is4)
			if err == nil && state.Fairway() {
				return true, nil
			}
			if err != nil && !errors.Is(err, exec.ErrNotFound) {
				return false, err
			}
		}
	}
	return false, nil
}
