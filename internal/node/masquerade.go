package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
)

// podsRules is the text that a person reads and the kernel gets.
//
//go:embed pods.nft
var podsRules string

const (
	podsTable    = "inet fairway-pods"
	podsChain    = "postrouting"
	podsPriority = 110 // srcnat + 10
	podsRuleSum  = 2   // rules in podsChain
)

// multicast is never masqueraded.
var multicast = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8")}

// wantedSets are the elements of the four sets, without any that another contains.
func wantedSets(p *plan, clusterCIDRs []netip.Prefix) map[string][]netip.Prefix {
	inside := slices.Concat(p.pods, clusterCIDRs, multicast)
	for _, addr := range p.nodes {
		inside = append(inside, netip.PrefixFrom(addr, addr.BitLen()))
	}
	sets := map[string][]netip.Prefix{"pods4": nil, "pods6": nil, "inside4": nil, "inside6": nil}
	for name, all := range map[string][]netip.Prefix{"pods": p.own, "inside": inside} {
		all = slices.Clone(all)
		slices.SortFunc(all, comparePrefixes)
		for _, prefix := range all {
			set := name + "4"
			if prefix.Addr().Is6() {
				set = name + "6"
			}
			if kept := sets[set]; len(kept) == 0 || !kept[len(kept)-1].Overlaps(prefix) {
				sets[set] = append(kept, prefix.Masked())
			}
		}
	}
	return sets
}

// syncMasquerade compares the table with what is wanted and writes the rules, or
// only elements, or nothing.
func (n *Network) syncMasquerade(ctx context.Context, p *plan) error {
	if !n.Masquerade || len(p.own) == 0 {
		return n.removeMasquerade(ctx)
	}
	version := rulesVersion()
	want := wantedSets(p, n.ClusterCIDRs)
	out, _ := nft(ctx, "", "-j", "list", "table", "inet", "fairway-pods")
	have, right := parseTable(out, version)
	var script strings.Builder
	if !right {
		// Declared first, so that deleting works also when there is none.
		fmt.Fprintf(&script, "table %s\ndelete table %s\n", podsTable, podsTable)
		script.WriteString(strings.ReplaceAll(podsRules, "VERSION", version))
		have = nil
	}
	for _, set := range []string{"pods4", "pods6", "inside4", "inside6"} {
		if slices.Equal(spans(want[set]), have[set]) {
			continue
		}
		fmt.Fprintf(&script, "flush set %s %s\n", podsTable, set)
		if len(want[set]) > 0 {
			fmt.Fprintf(&script, "add element %s %s { %s }\n", podsTable, set, joinPrefixes(want[set]))
		}
	}
	if script.Len() == 0 {
		return nil
	}
	if _, err := nft(ctx, script.String(), "-f", "-"); err != nil {
		return fmt.Errorf("load the masquerade rules: %w", err)
	}
	return nil
}

func (n *Network) removeMasquerade(ctx context.Context) error {
	// "list tables" tells a missing table from a broken nft without reading
	// an error message.
	out, err := nft(ctx, "", "-j", "list", "tables", "inet")
	if errors.Is(err, exec.ErrNotFound) {
		return nil // then nobody has loaded it
	}
	if err != nil {
		return fmt.Errorf("list nft tables: %w", err)
	}
	if !bytes.Contains(out, []byte(`"name": "fairway-pods"`)) {
		return nil
	}
	if _, err := nft(ctx, "", "delete", "table", "inet", "fairway-pods"); err != nil {
		return fmt.Errorf("delete the masquerade rules: %w", err)
	}
	return nil
}

func rulesVersion() string {
	sum := sha256.Sum256([]byte(podsRules))
	return hex.EncodeToString(sum[:4])
}

// nft runs the program in the caller's network namespace.
func nft(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "nft", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%w (install the package nftables)", err)
	case err != nil:
		first, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return nil, fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, first)
	}
	return stdout.Bytes(), nil
}

// A span is a range of addresses, both ends included. Sets are compared as
// sorted, merged spans, because nft may show neighbours as one range.
type span struct{ first, last netip.Addr }

func spans(prefixes []netip.Prefix) []span {
	var all []span
	for _, p := range prefixes {
		all = append(all, span{p.Masked().Addr(), lastAddr(p)})
	}
	return mergeSpans(all)
}

func mergeSpans(all []span) []span {
	slices.SortFunc(all, func(a, b span) int { return a.first.Compare(b.first) })
	var merged []span
	for _, s := range all {
		if end := len(merged) - 1; end >= 0 && (!merged[end].last.Less(s.first) || merged[end].last.Next() == s.first) {
			if merged[end].last.Less(s.last) {
				merged[end].last = s.last
			}
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

// lastAddr is the prefix's address with all host bits set.
func lastAddr(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

func joinPrefixes(prefixes []netip.Prefix) string {
	var texts []string
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ", ")
}

// listing is nft's JSON, as far as we look at it.
type listing struct {
	Nftables []struct {
		Set *struct {
			Name string            `json:"name"`
			Elem []json.RawMessage `json:"elem"`
		} `json:"set"`
		Chain *struct {
			Name, Type, Hook string
			Prio             int
		} `json:"chain"`
		Rule *struct {
			Chain, Comment string
		} `json:"rule"`
	} `json:"nftables"`
}

// parseTable reads the sets, and says whether chain and rules are those of this
// version. Somebody may have flushed the chain or left an older version.
func parseTable(text []byte, version string) (sets map[string][]span, right bool) {
	var list listing
	if json.Unmarshal(text, &list) != nil {
		return nil, false
	}
	sets = map[string][]span{}
	hooked, rules := false, 0
	for _, item := range list.Nftables {
		switch {
		case item.Set != nil:
			all, ok := parseElements(item.Set.Elem)
			if !ok {
				return nil, false
			}
			sets[item.Set.Name] = all
		case item.Chain != nil && item.Chain.Name == podsChain:
			hooked = item.Chain.Type == "nat" && item.Chain.Hook == "postrouting" && item.Chain.Prio == podsPriority
		case item.Rule != nil && item.Rule.Comment == "pods.nft "+version:
			rules++
		case item.Chain != nil || item.Rule != nil:
			return nil, false // not ours, or of another version
		}
	}
	return sets, hooked && rules == podsRuleSum && len(sets) == 4
}

// parseElements reads addresses, prefixes and ranges.
func parseElements(elements []json.RawMessage) ([]span, bool) {
	var all []span
	for _, element := range elements {
		var addr netip.Addr
		if json.Unmarshal(element, &addr) == nil {
			all = append(all, span{addr, addr})
			continue
		}
		var shape struct {
			Prefix *struct {
				Addr netip.Addr
				Len  int
			}
			Range []netip.Addr
		}
		err := json.Unmarshal(element, &shape)
		switch {
		case err == nil && shape.Prefix != nil:
			all = append(all, spans([]netip.Prefix{netip.PrefixFrom(shape.Prefix.Addr, shape.Prefix.Len)})...)
		case err == nil && len(shape.Range) == 2:
			all = append(all, span{shape.Range[0], shape.Range[1]})
		default:
			return nil, false
		}
	}
	return mergeSpans(all), true
}
