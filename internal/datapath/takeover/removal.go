package takeover

import (
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// Our mode iptables writes chains of the same names. Those are ours by adoption, and left
// to it, where its chain of settings is; there, only chains that it does not use are kube-proxy's.
func adopts(table, chain string) bool { return table == "nat" && chain == xtables.FairwaySettings }

// kubeProxys reports whether a chain is kube-proxy's. adopted says that our mode iptables
// has adopted those that it uses as well.
func kubeProxys(chain string, adopted bool) bool {
	if adopted {
		return xtables.IsKubeProxysAlone(chain)
	}
	return xtables.IsKubeProxys(chain)
}

// A savedTable is one table as iptables-save prints it.
type savedTable struct {
	name    string
	builtin map[string]bool
	chains  []string
	rules   []savedRule
}

type savedRule struct{ chain, text, target string } // text: what follows "-A CHAIN "

// A ruleset is what iptables-save prints.
type ruleset struct {
	tables  []*savedTable
	adopted bool // our mode iptables has adopted kube-proxy's chains
}

// add notes a line.
func (r *ruleset) add(l xtables.Line) {
	if l.Kind == xtables.Table {
		r.tables = append(r.tables, &savedTable{name: l.Table, builtin: map[string]bool{}})
		return
	}
	t := r.tables[len(r.tables)-1]
	if l.Kind == xtables.Rule {
		t.rules = append(t.rules, savedRule{l.Chain, l.Text, xtables.Target(l.Text)})
		return
	}
	t.chains = append(t.chains, l.Chain)
	t.builtin[l.Chain] = l.Text != "-"
	r.adopted = r.adopted || adopts(l.Table, l.Chain)
}

// serves reports whether kube-proxy's rules of Services are there. Chains that our mode
// iptables has adopted are not told from kube-proxy's own, but for the canary in nat: our
// mode removes it whenever it writes, and a kube-proxy that misses it writes everything.
func (r *ruleset) serves() bool {
	return slices.ContainsFunc(r.tables, func(t *savedTable) bool {
		if r.adopted {
			return t.name == "nat" && slices.Contains(t.chains, xtables.KubeProxyCanary)
		}
		return slices.ContainsFunc(t.rules, func(one savedRule) bool { return one.target == xtables.KubeServices })
	})
}

// kept returns the chains of kube-proxy that chains of other programs use, and those that
// these use: they must stay.
func (t *savedTable) kept() map[string]bool {
	kept := map[string]bool{}
	for again := true; again; {
		again = false
		for _, r := range t.rules {
			foreign := !t.builtin[r.chain] && !xtables.IsKubeProxys(r.chain)
			if (foreign || kept[r.chain]) && xtables.IsKubeProxys(r.target) && !kept[r.target] {
				kept[r.target], again = true, true
			}
		}
		if kept["KUBE-MARK-MASQ"] && !kept["KUBE-POSTROUTING"] { // it masquerades what has the mark
			kept["KUBE-POSTROUTING"], again = true, true
		}
	}
	return kept
}

// removal returns what iptables-restore --noflush must read to take kube-proxy's chains
// out of the rules: "" if there are none. Each table is one transaction.
func (r *ruleset) removal() string {
	var out strings.Builder
	for _, t := range r.tables {
		kept := t.kept()
		goes := func(chain string) bool { return kubeProxys(chain, r.adopted) && !kept[chain] }
		chains := slices.DeleteFunc(slices.Clone(t.chains), func(c string) bool { return !goes(c) })
		if len(chains) == 0 {
			continue
		}
		out.WriteString("*" + t.name + "\n")
		for _, c := range chains {
			out.WriteString(":" + c + " - [0:0]\n") // that empties it
		}
		for _, rule := range t.rules {
			if !goes(rule.chain) && goes(rule.target) {
				out.WriteString("-D " + rule.chain + " " + rule.text + "\n")
			}
		}
		for _, c := range chains {
			out.WriteString("-X " + c + "\n")
		}
		out.WriteString("COMMIT\n")
	}
	return out.String()
}
