package nft

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// A seal says what the rules of a table are, as the kernel holds them: a number in the
// comment of the only rule of the marker's chain, which no packet reaches. The marker alone
// says which program was loaded. Another program may have changed the rules since, while no
// process of ours watched, and a process may have ended before it had cleaned up.
const sealPrefix = "rules "

// Seal stores what the rules were at the last End, if it is not stored yet.
func (w *Watch) Seal(ctx context.Context, p *Ruleset) error {
	text := sealText(w.rules)
	if text == w.sealed {
		return nil
	}
	_, marker, err := p.render(w.table.name)
	if err != nil {
		return err
	}
	held, err := w.table.seal(ctx, marker)
	if err == nil && held != text {
		chain := w.table.Chain(marker)
		err = w.table.Commit(ctx, func(c *nftables.Conn) (bool, error) {
			c.FlushChain(chain)
			c.AddRule(&nftables.Rule{
				Table: w.table.Ref(), Chain: chain, Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}},
				UserData: userdata.AppendString(nil, userdata.TypeComment, text),
			})
			return true, nil
		}, nil)
	}
	if err != nil {
		return fmt.Errorf("seal rules: %w", err)
	}
	w.sealed = text
	return nil
}

// Runs reports whether the kernel runs p, and whether it runs another program of the table,
// which may be in the copy that Declare made.
func (t *Table) Runs(ctx context.Context, p *Ruleset) (this, another bool, err error) {
	_, marker, err := p.render(t.name)
	if err != nil {
		return false, false, err
	}
	for _, name := range []string{t.name, t.name + formerSuffix} {
		chains, err := t.listOf(ctx, name)
		if err != nil {
			return false, false, err
		}
		for _, c := range chains {
			this = this || c.Name == marker && name == t.name
			another = another || c.Name != marker && strings.HasPrefix(c.Name, markerPrefix)
		}
	}
	return this, another, nil
}

// Sealed reports whether the table has the rules with which p was sealed.
func (t *Table) Sealed(ctx context.Context, p *Ruleset) (bool, error) {
	_, marker, err := p.render(t.name)
	if err != nil {
		return false, err
	}
	held, err := t.seal(ctx, marker)
	if err != nil || held == "" {
		return false, err
	}
	rules, err := t.rules(ctx)
	return err == nil && held == sealText(rules), err
}

// seal returns the seal in a chain; empty if there is none.
func (t *Table) seal(ctx context.Context, marker string) (text string, err error) {
	err = t.reader.Rules(ctx, Inet, t.name, marker, func(r Rule) error {
		if strings.HasPrefix(r.Comment, sealPrefix) {
			text = r.Comment
		}
		return nil
	})
	return text, err
}

// sealText is the seal of the rules of all chains, in any order of the chains.
func sealText(rules map[string][]uint64) string {
	var sum uint64
	for chain, all := range rules {
		h := fnv.New64a()
		b := append([]byte(chain), 0)
		for _, one := range all {
			b = binary.BigEndian.AppendUint64(b, one)
		}
		_, _ = h.Write(b) // a hash takes everything
		sum += h.Sum64()
	}
	return fmt.Sprintf("%s%016x", sealPrefix, sum)
}

// hashes adds the hashes of a chain's rules, or of all rules of the table. A hash is of the
// expressions without counters, and the same in every process. The seal is left out.
func (t *Table) hashes(ctx context.Context, into map[string][]uint64, chain string) error {
	attrs := netlink.AppendText(nil, unix.NFTA_RULE_TABLE, t.name)
	if chain != "" {
		attrs = netlink.AppendText(attrs, unix.NFTA_RULE_CHAIN, chain)
	}
	type rule struct {
		chain string
		hash  uint64
	}
	var all []rule
	err := t.reader.dump(ctx, Inet, unix.NFT_MSG_GETRULE, attrs, func() { all = all[:0] }, func(b []byte) error {
		h, chain := fnv.New64a(), ""
		err := netlink.Attributes(b, func(typ uint16, b []byte) error {
			switch typ {
			case unix.NFTA_RULE_CHAIN:
				chain = text(b)
			case unix.NFTA_RULE_EXPRESSIONS:
				return hashExpressions(h, b)
			}
			return nil
		})
		all = append(all, rule{chain, h.Sum64()})
		return err
	})
	if err != nil {
		return fmt.Errorf("list rules of table %s: %w", t.name, err)
	}
	for _, one := range all {
		if !strings.HasPrefix(one.chain, markerPrefix) {
			into[one.chain] = append(into[one.chain], one.hash)
		}
	}
	return nil
}
