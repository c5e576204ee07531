package iptables

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// A script is what iptables-restore reads for one family, in three transactions: first
// the rules that refuse packets which are not translated any more, then the translation, then
// the removal of rules that refuse no more. So a packet never passes between two of them.
type script struct {
	before, nat, after section

	// unhooks are hooks that are deleted by their handles after the transactions.
	unhooks []hook
}

type section struct {
	table                  string
	declare, rules, remove []string
	added, deleted         int
}

func newScript() *script {
	return &script{before: section{table: filter}, nat: section{table: nat}, after: section{table: filter}}
}

func (s *script) sections() []*section { return []*section{&s.before, &s.nat, &s.after} }

func (s *script) String() string {
	var b strings.Builder
	for _, part := range s.sections() {
		if len(part.declare)+len(part.rules)+len(part.remove) == 0 {
			continue
		}
		b.WriteString("*" + part.table + "\n")
		for _, lines := range [][]string{part.declare, part.rules, part.remove} {
			for _, line := range lines {
				b.WriteString(line + "\n")
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// changesOf returns all lines of the scripts of both families. It is empty if they change nothing.
func changesOf(scripts map[bool]*script) (text string) {
	for _, is4 := range families() {
		if s := scripts[is4]; s != nil {
			text += s.String()
			for _, h := range s.unhooks {
				text += "-D " + h.in.name + " " + h.rule + "\n"
			}
		}
	}
	return text
}

// replaceChain writes a chain anew, in one transaction with all the others of its section.
func (s *section) replaceChain(name string, rules []string) {
	s.declare = append(s.declare, ":"+name+" - [0:0]")
	for _, r := range rules {
		s.rules = append(s.rules, "-A "+name+" "+r)
	}
	s.added += max(1, len(rules))
}

// deleteChain removes a chain that no rule leads to any more.
func (s *section) deleteChain(name string) {
	s.declare = append(s.declare, ":"+name+" - [0:0]")
	s.remove = append(s.remove, "-X "+name)
	s.deleted++
}

// insert puts rules before all others of a chain.
func (s *section) insert(name string, rules []string) {
	for _, r := range slices.Backward(rules) {
		s.rules = append(s.rules, "-I "+name+" "+r)
	}
	s.added += len(rules)
}

func (s *section) delete(name string, rules []string) {
	for _, r := range rules {
		s.rules = append(s.rules, "-D "+name+" "+r)
	}
	s.deleted += len(rules)
}

// adds is the section in which a chain of a table gets rules, removes the one in which it loses them.
func (s *script) adds(table string) *section {
	if table == nat {
		return &s.nat
	}
	return &s.before
}

func (s *script) removes(table string) *section {
	if table == nat {
		return &s.nat
	}
	return &s.after
}

// change adds a group's change in one family.
func (s *script) change(was, is *fragment) {
	for _, c := range sorted(is.chains) {
		if !slices.Equal(is.chains[c], was.chains[c]) {
			s.nat.replaceChain(c.name, is.chains[c])
		}
	}
	for _, c := range unionSorted(was.entries, is.entries) {
		from, to := was.entries[c], is.entries[c]
		if slices.Equal(from, to) {
			continue
		}
		s.adds(c.table).insert(c.name, minus(to, from))
		s.removes(c.table).delete(c.name, minus(from, to))
	}
	for _, c := range sorted(was.chains) {
		if _, stays := is.chains[c]; !stays {
			s.nat.deleteChain(c.name)
		}
	}
}

// changeAll changes a family that holds h to hold l.
func (s *script) changeAll(h *familyState, l *layout, entries map[chain][]string) {
	for _, c := range sorted(l.chains) {
		want := slices.Concat(entries[c], l.chains[c], l.tails[c])
		have, there := h.chains[c]
		if there && sameRules(have, want, len(entries[c])) {
			continue
		}
		missing, only := missingEntries(have, want, len(entries[c]))
		switch {
		case c.table == nat && only:
			s.nat.insert(c.name, missing)
		case c.table == nat:
			s.nat.replaceChain(c.name, want)
		case there:
			s.before.insert(c.name, minus(entries[c], have))
			s.after.replaceChain(c.name, want)
		default:
			s.before.replaceChain(c.name, want)
		}
	}
	for _, where := range []struct {
		table string
		in    *section
	}{{filter, &s.before}, {nat, &s.nat}} {
		s.hook(h, l, where.table, where.in)
	}
	for _, c := range sorted(h.chains) {
		if _, stays := l.chains[c]; !stays {
			s.removes(c.table).deleteChain(c.name)
		}
	}
}

// hook leads packets to our chains, each packet once.
func (s *script) hook(h *familyState, l *layout, table string, in *section) {
	left := slices.Clone(h.hooks)
	missing := map[string][]string{}
	for _, want := range l.hooks {
		if want.in.table != table {
			continue
		}
		if i := slices.IndexFunc(left, want.same); i >= 0 {
			left = slices.Delete(left, i, i+1)
			continue
		}
		missing[want.in.name] = append(missing[want.in.name], want.rule)
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		in.insert(name, missing[name])
	}
	for _, old := range left {
		_, stays := l.chains[chain{table, xtables.Target(old.rule)}]
		switch {
		case old.in.table != table:
		case old.handle != 0 && stays:
			s.unhooks = append(s.unhooks, old)
		default:
			in.delete(old.in.name, []string{old.rule})
		}
	}
}

// sameRules compares what a chain holds with what is wanted. The order of the
// entries at its beginning means nothing, that of all other rules does.
func sameRules(have, want []string, entries int) bool {
	if len(have) != len(want) {
		return false
	}
	set := func(all []string) []string { return slices.Sorted(slices.Values(all[:entries])) }
	return slices.Equal(have[entries:], want[entries:]) && slices.Equal(set(have), set(want))
}

// missingEntries reports whether a chain lacks only some of its entries, and which.
func missingEntries(have, want []string, entries int) (missing []string, only bool) {
	had := len(have) - (len(want) - entries)
	if had <= 0 || !slices.Equal(have[had:], want[entries:]) || len(minus(have[:had], want[:entries])) > 0 {
		return nil, false
	}
	missing = minus(want[:entries], have[:had])
	return missing, had+len(missing) == entries // else one is there twice
}

// minus is a without what is in b.
func minus(a, b []string) []string {
	if len(b) == 0 {
		return a
	}
	in := make(map[string]bool, len(b))
	for _, s := range b {
		in[s] = true
	}
	var out []string
	for _, s := range a {
		if !in[s] {
			out = append(out, s)
		}
	}
	return out
}

// sorted are the chains in the order of their names.
func sorted[T any](all map[chain]T) []chain {
	return slices.SortedFunc(maps.Keys(all), compareChains)
}

func compareChains(a, b chain) int {
	return cmp.Or(strings.Compare(a.table, b.table), strings.Compare(a.name, b.name))
}

// unionSorted are the chains of either.
func unionSorted(a, b map[chain][]string) []chain {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return sorted(all)
}
