package networkpolicy

import (
	"encoding/binary"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// passRule stands for rules that leave a decision to the next tier. No table has it.
const passRule RuleID = 0

// takeDefaults adds the rules for packets that no rule matches to the table.
func (c *Compiler) takeDefaults(p *profile) {
	if !p.layers {
		return
	}
	n := RuleName{Number: unmatched}
	if p.isolated {
		n = RuleName{Direction: p.direction, Number: isolated, Action: Deny}
	}
	p.defaults = append(p.defaults, n)
	c.takeRule(n)
}

// unmatched is the rule for packets that no rule matches.
func (p *profile) unmatched() RuleID {
	switch {
	case !p.isolated:
		return Unmatched
	case p.direction == Ingress:
		return IsolatedIngress
	}
	return IsolatedEgress
}

// layeredClass returns the segments of a class for some rules, together with the rules about all addresses and all
// pods.
func (p *profile) layeredClass(rules []int, k *class) []Segment {
	rules = merge(rules, p.allAddrs)
	if k.number&PodClass != 0 {
		rules = merge(rules, p.anyPod)
	}
	return p.layered(rules, k, k.number)
}

// merge returns both, sorted, each once.
func merge(a, b []int) []int {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// layered returns the segments of a class, tier by tier. They cover every port, because a lookup that finds a port in a
// class does not look further, and cannot compare the rules of two classes.
func (p *profile) layered(rules []int, k *class, number Class) []Segment {
	if len(rules) == 0 {
		return nil
	}
	key, covered := []byte{1}, p.covered(number) || k != nil && k.named
	if covered {
		key[0] = 2
	}
	var tiers [3][]Segment // in the order in which the tiers decide
	for _, i := range rules {
		r := &p.rules[i]
		some := &tiers[r.tier.order()]
		*some = append(*some, r.ports...)
		key = binary.NativeEndian.AppendUint32(key, uint32(i))
		if k == nil {
			continue
		}
		for _, t := range k.terms {
			if slices.Contains(r.names, t.port) {
				*some = append(*some, Segment{t.port.proto, 0, 65535, r.id})
				key = binary.NativeEndian.AppendUint32(key, uint32(t.sequence)|1<<31)
			}
		}
	}
	if s, ok := p.memo[string(key)]; ok {
		return s
	}
	rest := Segment{Last: 65535, Rule: p.unmatched()}
	tiers[Namespaced.order()] = disjoint(tiers[Namespaced.order()])
	s := []Segment{rest}
	for _, tier := range slices.Backward(tiers[:]) {
		s = layer(tier, s)
	}
	keep := s[0] != rest || covered
	if s = append(s[1:], s[0]); !keep {
		s = s[:len(s)-1]
	}
	p.memo[string(key)] = s
	return s
}

// covered reports whether a lookup continues elsewhere if it finds no segment in a class.
func (p *profile) covered(number Class) bool {
	return number != AnyAddr && len(p.grants[AnyAddr]) > 0 ||
		number&PodClass != 0 && len(p.grants[AnyPod]) > 0
}

// layer returns the segments of above in front of below. The first segment of above with a port decides about the port,
// or leaves it to below. The first segment of below, and of the result, decides about all ports without another
// segment.
func layer(above, below []Segment) []Segment {
	rest := below[0]
	if i := slices.IndexFunc(above, func(s Segment) bool { return s.Proto == 0 }); i >= 0 {
		if above[i].Rule != passRule {
			rest = above[i]
		}
		above = above[:i]
	}
	byProto := map[api.Proto][2][]Segment{}
	for i, some := range [][]Segment{above, below[1:]} {
		for _, s := range some {
			both := byProto[s.Proto]
			both[i] = append(both[i], s)
			byProto[s.Proto] = both
		}
	}
	var out []Segment
	for proto, both := range byProto {
		under := paint(proto, append(both[1], Segment{proto, 0, 65535, below[0].Rule}))
		over := both[0]
		if rest != below[0] {
			over = append(over, Segment{proto, 0, 65535, rest.Rule})
		} else {
			over = append(over, Segment{proto, 0, 65535, passRule})
		}
		for _, s := range paint(proto, over) {
			if s.Rule != passRule {
				out = append(out, s)
				continue
			}
			for _, u := range under {
				if u.First <= s.Last && s.First <= u.Last {
					out = append(out, Segment{proto, max(u.First, s.First), min(u.Last, s.Last), u.Rule})
				}
			}
		}
	}
	out = slices.DeleteFunc(out, func(s Segment) bool { return s.Rule == rest.Rule })
	slices.SortFunc(out, compareSegments)
	return append([]Segment{rest}, joined(out)...)
}

// joined merges adjacent segments of one rule.
func joined(all []Segment) (out []Segment) {
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].Proto == s.Proto && out[n-1].Rule == s.Rule && uint32(out[n-1].Last)+1 == uint32(s.First) {
			out[n-1].Last = s.Last
			continue
		}
		out = append(out, s)
	}
	return out
}
