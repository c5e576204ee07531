package takeover

import (
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// Our mode iptables writes chains with kube-proxy's names. If our chain of settings exists, the mode has adopted these
// chains, and only the chains that it does not use are kube-proxy's.
func adopts(table, chain string) bool { return table == "nat" && chain == xtables.FairwaySettings }

// kubeProxys reports whether a chain is kube-proxy's. adopted says that our mode iptables has adopted the chains that
// both use.
func kubeProxys(chain string, adopted bool) bool {
	if adopted {
		return xtables.IsKubeProxysAlone(chain)
	}
	return xtables.IsKubeProxys(chain)
}

// A savedTable is one table in the output of iptables-save.
type savedTable struct {
	name    string
	builtin map[string]bool
	chains  []string
	rules   []savedRule
}

type savedRule struct{ chain, text, target string } // text follows "-A CHAIN "

// A ruleset is the output of iptables-save.
type ruleset struct {
	tables  []*savedTable
	adopted bool // our mode iptables has adopted kube-proxy's chains
}

// add parses a line.
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

// serves reports whether kube-proxy's rules of Services exist. Adopted chains look like kube-proxy's own, so only the
// canary in table nat tells: our mode removes it with each write, and a kube-proxy that misses it writes all its rules.
func (r *ruleset) serves() bool {
	return slices.ContainsFunc(r.tables, func(t *savedTable) bool {
		if r.adopted {
			return t.name == "nat" && slices.Contains(t.chains, xtables.KubeProxyCanary)
		}
		return slices.ContainsFunc(t.rules, func(one savedRule) bool { return one.target == xtables.KubeServices })
	})
}

// kept returns the chains of kube-proxy that must stay: chains that other programs use, and chains that these chains
// use.
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
		if kept["KUBE-MARK-MASQ"] && !kept["KUBE-POSTROUTING"] { // KUBE-POSTROUTING masquerades the packets that KUBE-MARK-MASQ marks
			kept["KUBE-POSTROUTING"], again = true, true
		}
	}
	return kept
}

// removal returns the input of iptables-restore --noflush that removes kube-proxy's chains. It is empty if there are
// none. Each table is one transaction.
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
			out.WriteString(":" + c + " - [0:0]\n") // empties the chain
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
