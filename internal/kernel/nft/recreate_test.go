package nft

import "testing"

// TestLater: the line of a base chain in nft's listing gets the next higher priority.
func TestLater(t *testing.T) {
	const kind = "\t\ttype filter hook prerouting"
	for line, want := range map[string]string{
		kind + " priority dstnat; policy accept;":               kind + " priority dstnat +1; policy accept;",
		kind + " priority dstnat + 5; policy drop;":             kind + " priority dstnat +6; policy drop;",
		kind + " priority mangle - 9; policy accept;":           kind + " priority mangle -8; policy accept;",
		kind + " priority filter - 1; policy accept;":           kind + " priority filter +0; policy accept;",
		kind + " priority -90; policy accept;":                  kind + " priority -89; policy accept;",
		kind + " priority 300; policy accept;":                  kind + " priority 301; policy accept;",
		kind + " device \"lo\" priority 0; policy accept;":      kind + " device \"lo\" priority 1; policy accept;",
		"\t\tmeta priority 5 goto policy-check":                 "\t\tmeta priority 5 goto policy-check",
		"\t\tmeta priority set none comment \"type x hook y;\"": "\t\tmeta priority set none comment \"type x hook y;\"",
	} {
		if got := hookPriority.ReplaceAllStringFunc(line, later); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
