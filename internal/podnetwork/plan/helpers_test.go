package plan

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// born is when the n-th node of a test was made.
func born(n int) time.Time { return time.Date(2026, 1, 1, n, 0, 0, 0, time.UTC) }

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

var bothCIDRs = prefixes("10.244.0.0/16", "fd00:10:244::/48")

func sortedKeys(routes map[netip.Prefix]Route) []netip.Prefix {
	return slices.SortedFunc(maps.Keys(routes), netip.Prefix.Compare)
}
