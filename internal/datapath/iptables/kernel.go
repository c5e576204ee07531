package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/xtables"
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

// A held is what the kernel holds of one family.
type familyState struct {
	chains map[chain][]string // ours; nil rules: it is not there
	hooks  []hook             // rules in others' chains that lead to ours
	others map[string]int     // rules and chains of others, by table
	rules  int                // of all programs
	hints  bool               // kubelet uses this variant
	names  map[chain]bool     // of all programs' chains
	uses   map[string]int     // by table: all rules, and once more those that lead to a chain
}

func newFamilyState() *familyState {
	return &familyState{chains: map[chain][]string{}, others: map[string]int{}, names: map[chain]bool{}, uses: map[string]int{}}
}

// add notes one line of what iptables-save prints.
func (h *familyState) add(l xtables.Line) {
	c := chain{l.Table, l.Chain}
	switch l.Kind {
	case xtables.Table:
		h.others[l.Table] += 0
	case xtables.Chain:
		h.names[c] = true
		h.hints = h.hints || l.Table == "mangle" && (l.Chain == "KUBE-IPTABLES-HINT" || l.Chain == "KUBE-KUBELET-CANARY")
		switch {
		case ours(c):
			h.chains[c] = []string{}
		case l.Text != "ACCEPT":
			h.others[l.Table]++ // a chain of another program, or a policy
		}
	case xtables.Rule:
		h.rules++
		h.uses[l.Table]++
		jump := xtables.Target(l.Text)
		if h.names[chain{l.Table, jump}] {
			h.uses[l.Table]++
		}
		if ours(c) {
			h.chains[c] = append(h.chains[c], l.Text)
		} else if ours(chain{l.Table, jump}) && strings.HasSuffix(l.Text, "-j "+jump) {
			h.hooks = append(h.hooks, hook{c, l.Text})
		} else {
			h.others[l.Table]++
		}
	}
}

// A snapshot is what the kernel holds at one time, read as far as it is asked for: each
// family of each variant once, because to read 10,000 Services takes seconds.
type snapshot struct {
	read map[ruleset]*familyState
	nft  *nft.Reader // the datapath's
}

// A ruleset is what one set of programs has of one family.
type ruleset struct {
	variant Variant
	is4     bool
}

func (d *Datapath) newSnapshot() *snapshot {
	return &snapshot{map[ruleset]*familyState{}, &d.seen.reader.nft}
}

// of returns what the kernel holds in one ruleset.
func (s *snapshot) of(ctx context.Context, v Variant, is4 bool) (h *familyState, err error) {
	if h := s.read[ruleset{v, is4}]; h != nil {
		return h, nil
	}
	if v == NFT {
		h, err = s.saveNFT(ctx, is4)
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

// saveNFT reads a ruleset with iptables-nft-save. That program reports success also where
// the kernel refused to answer in the middle, for lack of memory, and leaves out what it did
// not get. So what it printed is compared with the kernel's count of the uses of chains,
// unless another program wrote meanwhile: then the handles that Sync reads show it.
func (s *snapshot) saveNFT(ctx context.Context, is4 bool) (*familyState, error) {
	if err := xtables.Installed(xtables.Program(NFT, is4, "save")); err != nil {
		return nil, err
	}
	before, err := s.nft.Generation(ctx)
	if err != nil {
		return nil, err
	}
	h := newFamilyState()
	if err := xtables.Save(ctx, NFT, is4, h.add); err != nil {
		return nil, err
	}
	uses := map[string]int{}
	for _, table := range []string{nat, filter} {
		_, there, err := s.nft.Table(ctx, family(is4), table)
		if err == nil && there {
			err = s.nft.Chains(ctx, family(is4), table, func(c nft.Chain) error { uses[table] += int(c.Use); return nil })
		}
		if err != nil {
			return nil, err
		}
	}
	after, err := s.nft.Generation(ctx)
	if err != nil || before != after {
		return h, err
	}
	for table, want := range uses {
		if h.uses[table] != want {
			return nil, fmt.Errorf("%s left out rules of table %s: it printed %d of %d rules and jumps [the kernel is out of memory, or rules of another program are not iptables': nft list table %v %s]",
				xtables.Program(NFT, is4, "save"), table, h.uses[table], want, family(is4), table)
		}
	}
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
