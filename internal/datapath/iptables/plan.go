package iptables

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

type (
	chain = read.Chain
	hook  = read.Hook
)

const nat, filter = read.NAT, read.Filter

func natChain(name string) chain    { return chain{Table: nat, Name: name} }
func filterChain(name string) chain { return chain{Table: filter, Name: name} }

// A script is the input of iptables-restore for one family. It has three transactions: first the rules that reject
// packets which are no longer translated, then the translation, then the removal of rules that reject. Between two
// transactions no packet passes unhandled.
type script struct {
	before, nat, after section

	// unhooks are hooks that are deleted by their handles, after the transactions.
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

// String returns the text that iptables-restore reads. It is empty if nothing changes.
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

// changesOf returns all lines of the scripts of both families. It is empty if nothing changes.
func changesOf(scripts map[bool]*script) (text string) {
	for _, is4 := range read.Families() {
		if s := scripts[is4]; s != nil {
			text += s.String()
			for _, h := range s.unhooks {
				text += "-D " + h.In.Name + " " + h.Rule + "\n"
			}
		}
	}
	return text
}

// replaceChain empties a chain and writes its rules, in the section's transaction.
func (s *section) replaceChain(name string, rules []string) {
	s.declare = append(s.declare, ":"+name+" - [0:0]")
	for _, r := range rules {
		s.rules = append(s.rules, "-A "+name+" "+r)
	}
	s.added += max(1, len(rules))
}

// deleteChain removes a chain to which no rule leads.
func (s *section) deleteChain(name string) {
	s.declare = append(s.declare, ":"+name+" - [0:0]")
	s.remove = append(s.remove, "-X "+name)
	s.deleted++
}

// insert puts rules at the beginning of a chain.
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

// adds returns the section in which a chain of a table gets rules.
func (s *script) adds(table string) *section {
	if table == nat {
		return &s.nat
	}
	return &s.before
}

// removes returns the section in which a chain of a table loses rules.
func (s *script) removes(table string) *section {
	if table == nat {
		return &s.nat
	}
	return &s.after
}

// change adds the difference between a group's old and new rules.
func (s *script) change(old, next *fragment) {
	for _, c := range sorted(next.chains) {
		if !slices.Equal(next.chains[c], old.chains[c]) {
			s.nat.replaceChain(c.Name, next.chains[c])
		}
	}
	for _, c := range unionSorted(old.entries, next.entries) {
		from, to := old.entries[c], next.entries[c]
		if slices.Equal(from, to) {
			continue
		}
		s.adds(c.Table).insert(c.Name, minus(to, from))
		s.removes(c.Table).delete(c.Name, minus(from, to))
	}
	for _, c := range sorted(old.chains) {
		if _, stays := next.chains[c]; !stays {
			s.nat.deleteChain(c.Name)
		}
	}
}

// changeAll adds the difference between the kernel's rules of a family and the wanted rules. These are the layout, and
// the Services' entries of shared chains.
func (s *script) changeAll(kernel *read.State, l *layout, entries map[chain][]string) {
	for _, c := range sorted(l.chains) {
		want := slices.Concat(entries[c], l.chains[c], l.tails[c])
		have, exists := kernel.Chains[c]
		if exists && sameRules(have, want, len(entries[c])) {
			continue
		}
		missing, only := missingEntries(have, want, len(entries[c]))
		switch {
		case c.Table == nat && only:
			s.nat.insert(c.Name, missing)
		case c.Table == nat:
			s.nat.replaceChain(c.Name, want)
		case exists:
			s.before.insert(c.Name, minus(entries[c], have))
			s.after.replaceChain(c.Name, want)
		default:
			s.before.replaceChain(c.Name, want)
		}
	}
	s.changeHooks(kernel, l, filter, &s.before)
	s.changeHooks(kernel, l, nat, &s.nat)
	for _, c := range sorted(kernel.Chains) {
		if _, stays := l.chains[c]; !stays {
			s.removes(c.Table).deleteChain(c.Name)
		}
	}
}

// changeHooks adds the missing hooks of a table, and removes unknown and duplicate hooks, so that each packet passes
// our chains once.
func (s *script) changeHooks(kernel *read.State, l *layout, table string, in *section) {
	surplus := slices.Clone(kernel.Hooks)
	missing := map[string][]string{}
	for _, want := range l.hooks {
		if want.In.Table != table {
			continue
		}
		if i := slices.IndexFunc(surplus, want.Same); i >= 0 {
			surplus = slices.Delete(surplus, i, i+1)
			continue
		}
		missing[want.In.Name] = append(missing[want.In.Name], want.Rule)
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		in.insert(name, missing[name])
	}
	for _, h := range surplus {
		_, targetStays := l.chains[chain{Table: table, Name: xtables.Target(h.Rule)}]
		switch {
		case h.In.Table != table:
		case h.Handle != 0 && targetStays:
			s.unhooks = append(s.unhooks, h)
		default:
			in.delete(h.In.Name, []string{h.Rule})
		}
	}
}

// sameRules compares the rules of a chain. The first entries rules of want may be in any order.
func sameRules(have, want []string, entries int) bool {
	if len(have) != len(want) {
		return false
	}
	set := func(all []string) []string { return slices.Sorted(slices.Values(all[:entries])) }
	return slices.Equal(have[entries:], want[entries:]) && slices.Equal(set(have), set(want))
}

// missingEntries reports whether a chain lacks only some of its entries, and returns the missing entries.
func missingEntries(have, want []string, entries int) (missing []string, only bool) {
	n := len(have) - (len(want) - entries) // how many entries the chain has
	if n <= 0 || !slices.Equal(have[n:], want[entries:]) || len(minus(have[:n], want[:entries])) > 0 {
		return nil, false
	}
	missing = minus(want[:entries], have[:n])
	return missing, n+len(missing) == entries // otherwise the chain has an entry twice
}

// minus returns the strings of a that are not in b.
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

// sorted returns the chains in the order of their tables and names.
func sorted[T any](all map[chain]T) []chain {
	return slices.SortedFunc(maps.Keys(all), func(a, b chain) int {
		return cmp.Or(strings.Compare(a.Table, b.Table), strings.Compare(a.Name, b.Name))
	})
}

// unionSorted returns the chains of a and of b.
func unionSorted(a, b map[chain][]string) []chain {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return sorted(all)
}
