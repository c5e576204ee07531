package read

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// iptables-nft's rules are read over netlink, because iptables-nft-save 1.8.9 takes ten seconds for 30,000 chains. It
// spends most of this time on sorting the chains' names.

// A Reader reads the rules of iptables-nft over a socket of its own. The socket works in the network namespace of the
// thread that first used it. The zero value is ready.
type Reader struct {
	nft nft.Reader

	// Tables is how many tables it has read. Tests compare it.
	Tables int
}

// Close closes the socket. A closed Reader may be used again.
func (r *Reader) Close() { r.nft.Close() }

// manyChains is how many chains a program lists one by one. For more chains, one program lists everything.
const manyChains = 50

// State reads all tables of a family that iptables-nft uses. It compares the number of rules with the kernel's counts,
// and fails if a rule is missing. If another program writes meanwhile, the counts are not compared: the caller's
// nft.Watch reports that write.
func (r *Reader) State(ctx context.Context, is4 bool) (*State, error) {
	if err := xtables.Installed(xtables.Program(xtables.NFT, is4, "restore")); err != nil {
		return nil, err
	}
	before, err := r.nft.Generation(ctx)
	if err != nil {
		return nil, err
	}
	s, uses := newState(), map[string]int{}
	var unknown []unknownChain
	for _, table := range xtables.Tables {
		if uses[table], err = r.table(ctx, s, is4, table, &unknown); err != nil {
			return nil, fmt.Errorf("read rules: %w", err)
		}
	}
	if s, err = askProgram(ctx, s, is4, unknown); err != nil {
		return nil, err
	}
	after, err := r.nft.Generation(ctx)
	if err != nil || before != after {
		return s, err
	}
	for table, want := range uses {
		if s.uses[table] != want {
			return nil, fmt.Errorf("table %v %s lacks rules: there are %d of %d rules and jumps [rules of another program are not iptables': nft list table %[1]v %[2]s]",
				Family(is4), table, s.uses[table], want)
		}
	}
	return s, nil
}

// table reads one table into s. It returns the kernel's count of rules and jumps. It adds no rules of a chain with a
// rule that Decode does not know, and appends the chain to unknown.
func (r *Reader) table(ctx context.Context, s *State, is4 bool, table string, unknown *[]unknownChain) (uses int, err error) {
	_, exists, err := r.nft.Table(ctx, Family(is4), table)
	if err != nil || !exists {
		return 0, err
	}
	s.add(xtables.Line{Kind: xtables.Table, Table: table})
	var all []Chain
	err = r.nft.Chains(ctx, Family(is4), table, func(c nft.Chain) error {
		policy := "-"
		if c.Base {
			if policy = "ACCEPT"; c.Drop {
				policy = "DROP"
			}
		}
		uses += int(c.Use)
		s.add(xtables.Line{Kind: xtables.Chain, Table: table, Chain: c.Name, Text: policy})
		all = append(all, Chain{table, c.Name})
		return nil
	})
	for i := 0; i < len(all) && err == nil; i++ {
		var known bool
		var toOurs []nft.Rule
		if toOurs, known, err = r.chain(ctx, s, is4, all[i]); !known {
			*unknown = append(*unknown, unknownChain{all[i], toOurs})
		}
	}
	r.Tables++
	return uses, err
}

// An unknownChain is a chain with a rule that Decode does not know.
type unknownChain struct {
	Chain
	toOurs []nft.Rule // its rules that jump to our chains, in their order
}

// chain reads the rules of one chain into s. It makes text of the rules of our chains, and of the rules that jump to
// our chains. It returns the latter. If Decode does not know one of them, s gets no rule of the chain.
func (r *Reader) chain(ctx context.Context, s *State, is4 bool, c Chain) (toOurs []nft.Rule, known bool, err error) {
	var texts []string
	var rules []nft.Rule
	known = true
	err = r.nft.Expressions(ctx, Family(is4), c.Table, c.Name, func(rule nft.Rule, exprs []byte) error {
		text, jumps := "", IsOurs(Chain{c.Table, rule.Jump})
		if jumps {
			toOurs = append(toOurs, rule)
		}
		if jumps || IsOurs(c) {
			var ok bool
			text, ok = xtables.Decode(is4, exprs)
			known = known && ok
		}
		texts, rules = append(texts, text), append(rules, rule)
		return nil
	})
	for i := 0; i < len(texts) && known; i++ {
		s.rule(c, texts[i], rules[i].Jump, rules[i].Handle)
	}
	return toOurs, known, err
}

// askProgram adds the rules of the unknown chains as iptables-nft prints them, and returns the complete state.
// kube-proxy's chains are unknown if they have session affinity, which uses xt_recent.
func askProgram(ctx context.Context, s *State, is4 bool, unknown []unknownChain) (*State, error) {
	if len(unknown) > manyChains {
		return Save(ctx, xtables.NFT, is4)
	}
	for _, c := range unknown {
		n := 0 // the next of toOurs
		err := xtables.SaveChain(ctx, xtables.NFT, is4, c.Table, c.Name, func(l xtables.Line) {
			if l.Kind != xtables.Rule {
				return
			}
			target, handle := xtables.Target(l.Text), uint64(0)
			if n < len(c.toOurs) && IsOurs(Chain{c.Table, target}) {
				if c.toOurs[n].Jump == target {
					handle = c.toOurs[n].Handle
				}
				n++
			}
			s.rule(c.Chain, l.Text, target, handle)
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}
