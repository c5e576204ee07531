package iptables

import (
	"context"
	"fmt"
	"maps"

	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// What iptables-nft holds, by its handles: the kernel numbers each table, chain and rule,
// so that a rule added or removed changes them; only a rule that is replaced keeps its
// number. To read them, and a hash of the rules' expressions, takes a tenth of the time of
// iptables-nft-save, which makes text of them.
//
//	(ip, nat, KUBE-SVC-X) ── table 7, chain 23, rules 31, 32, 33 ──→ one fingerprint
//	(ip, nat, PREROUTING, to KUBE-SERVICES) ── rule 12 ────────────→ one fingerprint

// A chainRef is one chain of ours, or the rules in a chain of others that lead to one.
type chainRef struct {
	is4 bool
	in  chain
	to  string // the chain of ours; empty: the chainRef is itself one
}

// A fingerprint stands for the handles at one chainRef.
type fingerprint struct {
	chain uint64 // of the table and the chain
	rules uint64
	use   uint32 // rules in the chain and jumps to it: a rule added or removed changes it
}

// handles are the fingerprints of all chains.
type handles map[chainRef]fingerprint

// differ are the chains at which two readings differ.
func (h handles) differ(o handles) map[chainRef]bool {
	all := map[chainRef]bool{}
	for s, v := range h {
		if w, ok := o[s]; !ok || v.chain != w.chain || v.rules != w.rules {
			all[s] = true
		}
	}
	for s := range o {
		if _, ok := h[s]; !ok {
			all[s] = true
		}
	}
	return all
}

// mix adds a number to a fingerprint: another order makes another fingerprint. (FNV's prime.)
func mix(fingerprint, handle uint64) uint64 { return (fingerprint ^ handle) * 1099511628211 }

// A handleReader reads handles over a socket of its own, which works in the network
// namespace of the thread that first used it.
type handleReader struct {
	nft    nft.Reader
	tables int // that it has read as text
}

func (t *handleReader) close() { t.nft.Close() }

// everyHandle reads all handles. If like is not nil, chains that are used as often as in like, but for
// some, are taken to hold the same rules: that costs a tenth, and misses a rule that was replaced.
func (t *handleReader) everyHandle(ctx context.Context, like handles, but map[chainRef]bool) (all handles, err error) {
	all = make(handles, len(like))
	for _, is4 := range families() {
		for _, table := range []string{nat, filter} {
			if err := t.table(ctx, all, like, but, is4, table); err != nil {
				return nil, fmt.Errorf("read handles of rules: %w", err)
			}
		}
	}
	return all, nil
}

// someHandles reads those of some chains again.
func (t *handleReader) someHandles(ctx context.Context, all handles, which map[chainRef]bool) error {
	tables := map[ruleTable]uint64{} // their handles
	for s := range which {
		if err := t.chainRef(ctx, all, s, tables); err != nil {
			return fmt.Errorf("read handles of rules: %w", err)
		}
	}
	return nil
}

// A ruleTable is one table of one family.
type ruleTable struct {
	is4  bool
	name string
}

// chainRef reads those of one chain again.
func (t *handleReader) chainRef(ctx context.Context, all handles, s chainRef, tables map[ruleTable]uint64) error {
	if !isOurs(s.in) {
		maps.DeleteFunc(all, func(o chainRef, _ fingerprint) bool { return o.is4 == s.is4 && o.in == s.in })
		return t.rules(ctx, all, chainRef{is4: s.is4, in: s.in})
	}
	delete(all, s)
	in := ruleTable{s.is4, s.in.table}
	if _, asked := tables[in]; !asked {
		var err error
		if tables[in], _, err = t.nft.Table(ctx, family(s.is4), s.in.table); err != nil {
			return err
		}
	}
	c, there, err := t.nft.Chain(ctx, family(s.is4), s.in.table, s.in.name)
	if err != nil || !there {
		return err
	}
	all[s] = fingerprintOf(c, tables[in])
	return t.rules(ctx, all, s)
}

// table reads the handles of one table: its rules chain by chain, because the kernel walks
// from a dump's start for each piece of it, and takes seconds for 80,000 rules at once.
func (t *handleReader) table(ctx context.Context, all, like handles, but map[chainRef]bool, is4 bool, table string) error {
	seed, there, err := t.nft.Table(ctx, family(is4), table)
	if err != nil || !there {
		return err
	}
	var read []chainRef
	err = t.nft.Chains(ctx, family(is4), table, func(c nft.Chain) error {
		s, is := chainRef{is4: is4, in: chain{table, c.Name}}, fingerprintOf(c, seed)
		if isOurs(s.in) {
			if was, ok := like[s]; ok && !but[s] && was.chain == is.chain && was.use == is.use {
				is.rules = was.rules
				all[s] = is
				return nil
			}
			all[s] = is
		}
		read = append(read, s)
		return nil
	})
	for i := 0; i < len(read) && err == nil; i++ {
		err = t.rules(ctx, all, read[i])
	}
	return err
}

// fingerprintOf is the fingerprint of a chain without its rules, in the table of a handle.
func fingerprintOf(c nft.Chain, table uint64) fingerprint {
	return fingerprint{chain: mix(table, c.Handle), use: c.Use}
}

// rules adds the rules of one chain: of one that is not ours, those that lead to ours.
func (t *handleReader) rules(ctx context.Context, all handles, s chainRef) error {
	return t.nft.Rules(ctx, family(s.is4), s.in.table, s.in.name, func(r nft.Rule) error {
		if isOurs(s.in) || isOurs(chain{s.in.table, r.Jump}) {
			all.add(s, r)
		}
		return nil
	})
}

// add adds a rule of a chain of ours, or one that leads to ours.
func (h handles) add(at chainRef, r nft.Rule) {
	if !isOurs(at.in) {
		at.to = r.Jump
	}
	d := h[at]
	d.rules = mix(d.rules, r.Hash)
	h[at] = d
}

func family(is4 bool) nft.Family {
	if is4 {
		return nft.IPv4
	}
	return nft.IPv6
}
