package takeover

import (
	"slices"
	"strings"
)

// kube-proxy's chains, by name and by the beginning of the name. Others begin with KUBE-
// as well: the kubelet's (KUBE-KUBELET-CANARY, KUBE-FIREWALL, KUBE-MARK-DROP), host ports
// of container runtimes (KUBE-HOSTPORTS, KUBE-HP-…), kube-router's.
var (
	chainNames = []string{
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ",
		"KUBE-FORWARD", "KUBE-PROXY-FIREWALL", "KUBE-PROXY-CANARY",
		// of mode ipvs
		"KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
	}
	chainPrefixes = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-", "KUBE-XLB-"}
)

// Our mode iptables writes chains of the same names. Those are ours by adoption, and left
// to it, where its own chain is; only what it has no use for is kube-proxy's there.
const (
	ourChain = "FAIRWAY"
	ourTable = "nat"
)

var unusedNames = []string{
	"KUBE-PROXY-CANARY", "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
}

// isKubeProxys reports whether a chain has a name that kube-proxy gives.
func isKubeProxys(chain string) bool {
	return slices.Contains(chainNames, chain) ||
		slices.ContainsFunc(chainPrefixes, func(p string) bool { return strings.HasPrefix(chain, p) })
}

// A savedTable is one table as iptables-save prints it.
type savedTable struct {
	name    string
	builtin map[string]bool
	chains  []string
	rules   []savedRule
}

type savedRule struct{ chain, text, target string } // text: "-A CHAIN …"

// parse reads what iptables-save printed.
func parse(saved string) []*savedTable {
	var all []*savedTable
	var t *savedTable
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			t = &savedTable{name: line[1:], builtin: map[string]bool{}}
			all = append(all, t)
		case t == nil:
		case strings.HasPrefix(line, ":"):
			name, policy, _ := strings.Cut(line[1:], " ")
			t.chains = append(t.chains, name)
			t.builtin[name] = !strings.HasPrefix(policy, "-")
		case strings.HasPrefix(line, "-A "):
			chain, _, _ := strings.Cut(line[3:], " ")
			t.rules = append(t.rules, savedRule{chain, line, target(line)})
		}
	}
	return all
}

// target returns the chain that a rule jumps or goes to; "" if to none.
func target(rule string) string {
	option := ""
	for word := range words(rule) {
		switch option {
		case "-j", "-g":
			return word
		case "--comment": // it may say anything
			word = ""
		}
		option = word
	}
	return ""
}

// words yields a rule's words. What is quoted, such as a comment, is one of them, and
// with its quote, so that it is never mistaken for an option.
func words(rule string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		start, quoted := 0, false
		for i := 0; i < len(rule); i++ {
			switch c := rule[i]; {
			case quoted && c == '\\':
				i++
			case c == '"':
				quoted = !quoted
			case c == ' ' && !quoted:
				if i > start && !yield(rule[start:i]) {
					return
				}
				start = i + 1
			}
		}
		if start < len(rule) {
			yield(rule[start:])
		}
	}
}

// kept returns the chains of kube-proxy that somebody else's chains use, and those that
// these use: they must stay.
func (t *savedTable) kept() map[string]bool {
	kept := map[string]bool{}
	for again := true; again; {
		again = false
		for _, r := range t.rules {
			foreign := !t.builtin[r.chain] && !isKubeProxys(r.chain)
			if (foreign || kept[r.chain]) && isKubeProxys(r.target) && !kept[r.target] {
				kept[r.target], again = true, true
			}
		}
		if kept["KUBE-MARK-MASQ"] && !kept["KUBE-POSTROUTING"] { // which does what the mark asks for
			kept["KUBE-POSTROUTING"], again = true, true
		}
	}
	return kept
}

// removal returns what iptables-restore --noflush must read to take kube-proxy's chains
// out of what iptables-save printed: "" if there are none. Each table is one transaction.
func removal(saved string) string {
	var out strings.Builder
	tables := parse(saved)
	adopted := slices.ContainsFunc(tables, func(t *savedTable) bool {
		return t.name == ourTable && slices.Contains(t.chains, ourChain)
	})
	for _, t := range tables {
		kept := t.kept()
		goes := func(chain string) bool {
			return isKubeProxys(chain) && !kept[chain] && (!adopted || slices.Contains(unusedNames, chain))
		}
		chains := slices.DeleteFunc(slices.Clone(t.chains), func(c string) bool { return !goes(c) })
		if len(chains) == 0 {
			continue
		}
		out.WriteString("*" + t.name + "\n")
		for _, c := range chains {
			out.WriteString(":" + c + " - [0:0]\n") // that empties it
		}
		for _, r := range t.rules {
			if !goes(r.chain) && goes(r.target) {
				out.WriteString("-D" + strings.TrimPrefix(r.text, "-A") + "\n")
			}
		}
		for _, c := range chains {
			out.WriteString("-X " + c + "\n")
		}
		out.WriteString("COMMIT\n")
	}
	return out.String()
}
