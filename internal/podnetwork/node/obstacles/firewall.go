package obstacles

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// A firewall is a table of another program, as `nft -j list table` prints it: the rules of each chain.
type firewall map[string][]expressions

// expressions are a rule's expressions. Each is an object with one field, the kind of the expression.
type expressions []map[string]json.RawMessage

func readFirewall(text []byte) (firewall, error) {
	var all struct {
		Objects []struct {
			Rule *struct {
				Chain string      `json:"chain"`
				Expr  expressions `json:"expr"`
			} `json:"rule"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read the output of nft -j: %w", err)
	}
	f := firewall{}
	for _, o := range all.Objects {
		if o.Rule != nil {
			f[o.Rule.Chain] = append(f[o.Rule.Chain], o.Rule.Expr)
		}
	}
	return f, nil
}

// A passage is a kind of packet that the firewall must accept: from or to all pods of a range, the first packet of a
// connection or a later one.
type passage struct {
	field string // saddr, daddr
	pods  netip.Prefix
	state string // new, established
}

// String returns "from 10.244.0.0/16" or "to 10.244.0.0/16".
func (p passage) String() string {
	return map[string]string{"saddr": "from ", "daddr": "to "}[p.field] + p.pods.String()
}

// missing returns the passages that neither the chain nor a chain that it jumps to accepts for certain.
//
// A rule counts only if it matches all packets of a passage. A rule about some of these packets, or with an expression
// that is not known here, neither accepts nor drops. A firewall may deny some packets: the question is whether its
// administrator has told it about the pods.
func (f firewall) missing(chain string, pods []netip.Prefix) (all []passage) {
	for _, p := range pods {
		for _, field := range []string{"saddr", "daddr"} {
			for _, state := range []string{"new", "established"} {
				q := passage{field, p, state}
				if verdict := f.walk(chain, q, 0); verdict != "accept" {
					all = append(all, q)
					break
				}
			}
		}
	}
	return all
}

// ends reports whether the last rule of a chain drops or rejects every packet that reaches it.
func (f firewall) ends(chain string) bool {
	rules := f[chain]
	if len(rules) == 0 {
		return false
	}
	verdict := false
	for _, e := range rules[len(rules)-1] {
		for name, value := range e {
			switch {
			case name == "drop" || name == "reject" || name == "xt" && xtName(value, "target") == "REJECT":
				verdict = true
			case name == "counter" || name == "log" || name == "xt" && xtName(value, "match") == "comment":
			default:
				return false
			}
		}
	}
	return verdict
}

// maxJumps is nf_tables' own limit.
const maxJumps = 16

// walk returns the verdict of a chain: accept, drop, or empty if the chain has none.
func (f firewall) walk(chain string, q passage, depth int) (verdict string) {
	for _, rule := range f[chain] {
		if depth > maxJumps || !rule.matches(q) {
			continue
		}
		for _, e := range rule {
			for name, value := range e {
				switch name {
				case "accept":
					return "accept"
				case "drop", "reject":
					return "drop"
				case "return":
					return ""
				case "xt":
					if xtName(value, "target") == "REJECT" {
						return "drop"
					}
				case "jump", "goto":
					var to struct {
						Target string `json:"target"`
					}
					if json.Unmarshal(value, &to) != nil {
						continue
					}
					verdict = f.walk(to.Target, q, depth+1)
					if verdict != "" || name == "goto" {
						return verdict
					}
				}
			}
		}
	}
	return ""
}

// neutral are the expressions that match every packet.
var neutral = []string{"counter", "log", "accept", "drop", "reject", "return", "jump", "goto"}

// matches reports whether the rule matches all packets of a passage.
func (rule expressions) matches(q passage) bool {
	for _, e := range rule {
		for name, value := range e {
			switch {
			case slices.Contains(neutral, name):
			case name == "xt" && (xtName(value, "match") == "comment" || xtName(value, "target") != ""):
			case name == "match" && matchesAll(value, q):
			default:
				return false
			}
		}
	}
	return true
}

// xtName returns the name of an iptables extension of a kind, match or target. It is empty for the other kind.
func xtName(text json.RawMessage, kind string) string {
	var xt struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	if json.Unmarshal(text, &xt) != nil || xt.Type != kind {
		return ""
	}
	return xt.Name
}

// matchesAll reports whether a condition holds for all packets of a passage.
func matchesAll(text json.RawMessage, q passage) bool {
	var m struct {
		Op   string `json:"op"`
		Left struct {
			Payload struct {
				Protocol string `json:"protocol"`
				Field    string `json:"field"`
			} `json:"payload"`
			CT struct {
				Key string `json:"key"`
			} `json:"ct"`
			Meta struct {
				Key string `json:"key"`
			} `json:"meta"`
		} `json:"left"`
		Right json.RawMessage `json:"right"`
	}
	if json.Unmarshal(text, &m) != nil || m.Op == "!=" {
		return false
	}
	switch {
	case m.Left.Payload.Field == q.field:
		return slices.ContainsFunc(items(m.Right), func(one json.RawMessage) bool { return covers(one, q.pods) })
	case m.Left.CT.Key == "state", m.Left.Meta.Key == "nfproto":
		family := map[bool]string{true: "ipv4", false: "ipv6"}[q.pods.Addr().Is4()]
		return slices.ContainsFunc(items(m.Right), func(one json.RawMessage) bool {
			var name string
			return json.Unmarshal(one, &name) == nil && (name == q.state || name == family)
		})
	}
	return false
}

// items returns the elements of a set or a list, or the value itself if it is neither.
func items(text json.RawMessage) (all []json.RawMessage) {
	var set struct {
		Set []json.RawMessage `json:"set"`
	}
	if json.Unmarshal(text, &all) == nil {
		return all
	}
	if json.Unmarshal(text, &set) == nil && set.Set != nil {
		return set.Set
	}
	return []json.RawMessage{text}
}

// covers reports whether an address, a prefix or a range, as nft prints them, contains all of the pods.
func covers(text json.RawMessage, pods netip.Prefix) bool {
	var one struct {
		Prefix struct {
			Addr netip.Addr `json:"addr"`
			Len  int        `json:"len"`
		} `json:"prefix"`
		Range []netip.Addr `json:"range"`
	}
	if json.Unmarshal(text, &one) != nil {
		return false
	}
	if len(one.Range) == 2 {
		last := netipx.PrefixLastIP(pods)
		return one.Range[0].Compare(pods.Masked().Addr()) <= 0 && one.Range[1].Compare(last) >= 0 && one.Range[0].BitLen() == last.BitLen()
	}
	p := netip.PrefixFrom(one.Prefix.Addr, one.Prefix.Len)
	return p.IsValid() && p.Bits() <= pods.Bits() && p.Contains(pods.Addr())
}
