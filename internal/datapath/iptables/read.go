package iptables

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// What iptables-nft holds, as text, is read from the kernel without its programs:
// iptables-nft-save 1.8.9 takes ten seconds for 30,000 chains, most of them to sort their
// names. The program is asked only where a rule has something that Decode does not know.
//
//	kernel ── chains, then rules chain by chain ──→ Decode ─→ familyState
//	iptables-nft -S CHAIN ←─ a rule of ours that Decode does not know; iptables-nft-save: many

// A rulesReader reads the rules of iptables-nft over a socket of its own, which works in the network
// namespace of the thread that first used it.
type rulesReader struct {
	nft    nft.Reader
	tables int // that it has read
}

func (t *rulesReader) close() { t.nft.Close() }

// manyChains is how many chains are read one by one by a program rather than all at once.
const manyChains = 50

// state reads all tables of a family that iptables-nft uses. The kernel's counts of the
// uses of chains say whether anything is missing, unless another program wrote meanwhile: then the
// handles that Sync reads show it.
func (t *rulesReader) state(ctx context.Context, is4 bool) (*familyState, error) {
	if err := xtables.Installed(xtables.Program(xtables.NFT, is4, "restore")); err != nil {
		return nil, err
	}
	before, err := t.nft.Generation(ctx)
	if err != nil {
		return nil, err
	}
	h, uses := newFamilyState(), map[string]int{}
	var unknown []unknownChain
	for _, table := range xtables.Tables {
		if uses[table], err = t.textOf(ctx, h, is4, table, &unknown); err != nil {
			return nil, fmt.Errorf("read rules: %w", err)
		}
	}
	if h, err = askProgram(ctx, h, is4, unknown); err != nil {
		return nil, err
	}
	after, err := t.nft.Generation(ctx)
	if err != nil || before != after {
		return h, err
	}
	for table, want := range uses {
		if h.uses[table] != want {
			return nil, fmt.Errorf("table %v %s lacks rules: there are %d of %d rules and jumps [rules of another program are not iptables': nft list table %[1]v %[2]s]",
				family(is4), table, h.uses[table], want)
		}
	}
	return h, nil
}

// askProgram adds the rules of chains that Decode does not know: kube-proxy's, for one, have xt_recent
// for each endpoint with affinity.
func askProgram(ctx context.Context, h *familyState, is4 bool, unknown []unknownChain) (*familyState, error) {
	if len(unknown) > manyChains {
		all := newFamilyState()
		return all, xtables.Save(ctx, xtables.NFT, is4, all.add)
	}
	for _, c := range unknown {
		n := 0
		err := xtables.SaveChain(ctx, xtables.NFT, is4, c.table, c.name, func(l xtables.Line) {
			if l.Kind != xtables.Rule {
				return
			}
			jump, handle := xtables.Target(l.Text), uint64(0)
			if n < len(c.rules) && isOurs(chain{c.table, jump}) {
				if c.rules[n].Jump == jump {
					handle = c.rules[n].Handle
				}
				n++
			}
			h.rule(c.chain, l.Text, jump, handle)
		})
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

// textOf reads one table, and returns how many rules and jumps the kernel counts in it. It
// leaves out rules of chains that have one which Decode does not know.
func (t *rulesReader) textOf(ctx context.Context, h *familyState, is4 bool, table string, unknown *[]unknownChain) (uses int, err error) {
	_, there, err := t.nft.Table(ctx, family(is4), table)
	if err != nil || !there {
		return 0, err
	}
	h.add(xtables.Line{Kind: xtables.Table, Table: table})
	var all []chain
	err = t.nft.Chains(ctx, family(is4), table, func(c nft.Chain) error {
		policy := "-"
		if c.Base {
			if policy = "ACCEPT"; c.Drop {
				policy = "DROP"
			}
		}
		uses += int(c.Use)
		h.add(xtables.Line{Kind: xtables.Chain, Table: table, Chain: c.Name, Text: policy})
		all = append(all, chain{table, c.Name})
		return nil
	})
	for i := 0; i < len(all) && err == nil; i++ {
		var known bool
		var rules []nft.Rule
		if rules, known, err = t.textOfChain(ctx, h, is4, all[i]); !known {
			*unknown = append(*unknown, unknownChain{all[i], rules})
		}
	}
	t.tables++
	return uses, err
}

// An unknownChain is a chain with a rule that Decode does not know. rules are the rules that jump to our chains.
type unknownChain struct {
	chain
	rules []nft.Rule
}

// textOfChain reads the rules of one chain: their text, if they are ours or lead to ours. It returns the rules that
// lead to our chains, and whether Decode knows all.
func (t *rulesReader) textOfChain(ctx context.Context, h *familyState, is4 bool, c chain) (toOurs []nft.Rule, known bool, err error) {
	var texts []string
	var rules []nft.Rule
	known = true
	err = t.nft.Expressions(ctx, family(is4), c.table, c.name, func(r nft.Rule, exprs []byte) error {
		text, jumps := "", isOurs(chain{c.table, r.Jump})
		if jumps {
			toOurs = append(toOurs, r)
		}
		if jumps || isOurs(c) {
			var ok bool
			text, ok = xtables.Decode(is4, exprs)
			known = known && ok
		}
		texts, rules = append(texts, text), append(rules, r)
		return nil
	})
	for i := 0; i < len(texts) && known; i++ {
		h.rule(c, texts[i], rules[i].Jump, rules[i].Handle)
	}
	return toOurs, known, err
}

// A difference is what a full Sync had to write and, when it was read back, would have to write again.
type difference struct {
	text    string // empty: nothing
	pause   time.Duration
	retryAt time.Time // when it is written again
}

// The time between two tries to write what differs doubles from the one to the other.
const firstPause, longestPause = 10 * time.Second, time.Hour

// String names the first line that would be written again.
func (d *difference) String() string {
	for line := range strings.Lines(d.text) {
		if strings.HasPrefix(line, "-A ") {
			return fmt.Sprintf("iptables-nft-restore reports success, and the kernel does not hold %q [another program writes too, the kernel is out of memory, or this version of iptables prints rules in other words]",
				strings.TrimSpace(line))
		}
	}
	return ""
}

// due reports whether it is time to write it again.
func (d *difference) due(now time.Time) bool { return d.text != "" && !now.Before(d.retryAt) }

// readBack reads what the kernel holds after scripts were written, and what is still to be written then:
// nothing. iptables-nft-restore 1.8.9 succeeds where the kernel does not answer which revision of a match it
// has, and writes "-m mark" so that it never matches. What is the same twice may be a version
// of iptables that prints our rules in other words, which must not keep a node from starting: they are taken
// as they are, reported, and written again after a while.
func (d *Datapath) readBack(ctx context.Context, groups map[group][]*service.Frontend, scripts map[bool]*script) error {
	was := d.differs
	d.differs = difference{}
	if d.variant != NFT || changesOf(scripts) == "" {
		return nil
	}
	now, err := d.newSnapshot().all(ctx, NFT)
	if err != nil {
		return err
	}
	left, _ := d.planAll(groups, now)
	if d.differs.text = changesOf(left); d.differs.text == "" {
		return nil
	}
	if d.differs.text != was.text {
		return errors.New("iptables-nft-restore reported success, and the kernel holds other rules [another program writes too, or the kernel is out of memory]")
	}
	d.differs.pause = min(max(2*was.pause, firstPause), longestPause)
	d.differs.retryAt = time.Now().Add(d.differs.pause)
	return nil
}
