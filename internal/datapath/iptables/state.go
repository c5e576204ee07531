package iptables

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// A Variant is one of the two sets of programs, each with its own rules in the kernel.
type Variant = xtables.Variant

// The variants. Auto takes the one whose rules kubelet or other programs use already, as
// kube-proxy's images do, and nf_tables where there are no rules.
const (
	Auto   Variant = 0
	NFT            = xtables.NFT
	Legacy         = xtables.Legacy
)

// families are the IP families that the kernel has.
func families() []bool {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return []bool{true}
	}
	return []bool{true, false}
}

// A familyState is what the kernel holds of one family.
type familyState struct {
	chains    map[chain][]string // ours; nil rules: it is not there
	hooks     []hook             // rules in others' chains that lead to ours
	foreign   map[string]int     // rules and chains of others, by table
	rules     int                // of all programs
	hints     bool               // kubelet uses this variant
	allChains map[chain]bool     // of all programs' chains
	uses      map[string]int     // by table: all rules, and once more those that lead to a chain
}

func newFamilyState() *familyState {
	return &familyState{chains: map[chain][]string{}, foreign: map[string]int{}, allChains: map[chain]bool{}, uses: map[string]int{}}
}

// add notes one line of what iptables-save prints.
func (h *familyState) add(l xtables.Line) {
	c := chain{l.Table, l.Chain}
	switch l.Kind {
	case xtables.Table:
		h.foreign[l.Table] += 0
	case xtables.Chain:
		h.allChains[c] = true
		h.hints = h.hints || l.Table == "mangle" && (l.Chain == "KUBE-IPTABLES-HINT" || l.Chain == "KUBE-KUBELET-CANARY")
		switch {
		case isOurs(c):
			h.chains[c] = []string{}
		case l.Text != "ACCEPT":
			h.foreign[l.Table]++ // a chain of another program, or a policy
		}
	case xtables.Rule:
		h.rule(c, l.Text, xtables.Target(l.Text), 0)
	}
}

// rule notes a rule of chain c. jump is the target of its text, a chain perhaps, and handle the kernel's number for it.
func (h *familyState) rule(c chain, text, jump string, handle uint64) {
	h.rules++
	h.uses[c.table]++
	if h.allChains[chain{c.table, jump}] {
		h.uses[c.table]++
	}
	if isOurs(c) {
		h.chains[c] = append(h.chains[c], text)
	} else if isOurs(chain{c.table, jump}) && strings.HasSuffix(text, "-j "+jump) {
		h.hooks = append(h.hooks, hook{c, text, handle})
	} else {
		h.foreign[c.table]++
	}
}

// A snapshot is what the kernel holds at one time, read as far as it is asked for: each
// family of each variant once, because to read 10,000 Services takes seconds.
type snapshot struct {
	read   map[ruleset]*familyState
	reader *rulesReader // the datapath's
}

// A ruleset is what one set of programs has of one family.
type ruleset struct {
	variant Variant
	is4     bool
}

func (d *Datapath) newSnapshot() *snapshot {
	return &snapshot{map[ruleset]*familyState{}, &d.reader}
}

// of returns what the kernel holds in one ruleset.
func (s *snapshot) of(ctx context.Context, v Variant, is4 bool) (h *familyState, err error) {
	if h := s.read[ruleset{v, is4}]; h != nil {
		return h, nil
	}
	if v == NFT {
		h, err = s.reader.state(ctx, is4)
	} else {
		h = newFamilyState()
		err = xtables.Save(ctx, v, is4, h.add)
	}
	if err != nil {
		return nil, err
	}
	s.read[ruleset{v, is4}] = h
	return h, nil
}

// all returns what the kernel holds in both families of one variant.
func (s *snapshot) all(ctx context.Context, v Variant) (map[bool]*familyState, error) {
	all := map[bool]*familyState{}
	for _, is4 := range families() {
		h, err := s.of(ctx, v, is4)
		if err != nil {
			return nil, err
		}
		all[is4] = h
	}
	return all, nil
}

// choose finds out which variant is in use.
func (s *snapshot) choose(ctx context.Context) (Variant, error) {
	count := map[Variant]int{}
	var missing []error
	for _, v := range []Variant{NFT, Legacy} {
		h, err := s.of(ctx, v, true)
		if errors.Is(err, exec.ErrNotFound) {
			missing = append(missing, err)
			continue
		}
		if err != nil {
			return NFT, err
		}
		count[v] = h.rules
		if len(h.chains[chain{nat, recordings}]) > 0 || h.hints {
			return v, nil
		}
	}
	if len(missing) == 2 {
		return NFT, errors.Join(missing...)
	}
	if count[Legacy] > count[NFT] {
		return Legacy, nil
	}
	return NFT, nil
}

// adopted reports whether a ruleset has chains that we wrote: kube-proxy's alone are not
// ours. An iptables that is not installed has nothing of ours.
func (s *snapshot) adopted(ctx context.Context) (bool, error) {
	for _, v := range []Variant{NFT, Legacy} {
		for _, is4 := range families() {
			h, err := s.of(ctx, v, is4)
			if err == nil && h.chains[chain{nat, recordings}] != nil {
				return true, nil
			}
			if err != nil && !errors.Is(err, exec.ErrNotFound) {
				return false, err
			}
		}
	}
	return false, nil
}
