package nft

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// An Interval includes From and excludes End; End is nil if the interval has no end.
type Interval struct{ From, End []byte }

// Intervals reads an interval set, sorted. The kernel keeps each edge as an element.
func (t *Table) Intervals(ctx context.Context, set string) ([]Interval, error) {
	var edges []Element
	err := t.Elements(ctx, set, func(e Element) error {
		edges = append(edges, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(edges, func(a, b Element) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 || a.End == b.End {
			return c
		}
		if a.End { // of the interval before
			return -1
		}
		return 1
	})
	var out []Interval
	for i, e := range edges {
		switch {
		case e.End:
		case i+1 < len(edges) && edges[i+1].End:
			out = append(out, Interval{e.Key, edges[i+1].Key})
		default:
			out = append(out, Interval{From: e.Key})
		}
	}
	return out, nil
}

// Prefixes reads an interval set of addresses.
func (t *Table) Prefixes(ctx context.Context, set string) ([]netip.Prefix, error) {
	all, err := t.Intervals(ctx, set)
	if err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, i := range all {
		from, ok := netip.AddrFromSlice(i.From)
		to := lastAddr(from.Is4())
		if i.End != nil {
			end, _ := netip.AddrFromSlice(i.End)
			to = end.Prev()
		}
		if !ok || !to.IsValid() {
			return nil, fmt.Errorf("read %s: address has %d bytes", set, len(i.From))
		}
		out = append(out, netipx.IPRangeFrom(from, to).Prefixes()...)
	}
	return out, nil
}

// ReplacePrefixes returns the writes that make an interval set of one family hold is
// instead of was; prefixes of the other family are ignored. The set is written again, in
// one transaction if it is the first of its Commit.
func ReplacePrefixes(set string, is4 bool, was, is []netip.Prefix) (ws []Write) {
	from, to := Ranges(was, is4), Ranges(is, is4)
	if slices.Equal(from, to) {
		return nil
	}
	for _, r := range from {
		ws = append(ws, Write{Set: set, Key: r.From().AsSlice(), End: behind(r.To()), Del: true})
	}
	for _, r := range to {
		ws = append(ws, Write{Set: set, Key: r.From().AsSlice(), End: behind(r.To()), Add: true})
	}
	return ws
}

// Ranges returns the prefixes of one family as sorted ranges that are not adjacent, the
// form that an interval set accepts.
func Ranges(all []netip.Prefix, is4 bool) []netipx.IPRange {
	var b netipx.IPSetBuilder
	for _, p := range all {
		if p.IsValid() && p.Addr().Is4() == is4 {
			b.AddPrefix(p)
		}
	}
	s, err := b.IPSet()
	if err != nil {
		return nil // only invalid prefixes make an error, and they are left out
	}
	return s.Ranges()
}

// behind returns the address after a as the end of an interval, nil after the last address.
func behind(a netip.Addr) []byte {
	if next := a.Next(); next.IsValid() {
		return next.AsSlice()
	}
	return nil
}

// lastAddr is the highest address of a family: an interval without an end reaches it.
func lastAddr(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte(bytes.Repeat([]byte{255}, 4)))
	}
	return netip.AddrFrom16([16]byte(bytes.Repeat([]byte{255}, 16)))
}

// Links reads an interval set of interfaces' names, as patterns: "eth0", "veth*".
func (t *Table) Links(ctx context.Context, set string) ([]string, error) {
	all, err := t.Intervals(ctx, set)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, i := range all {
		if i.End != nil {
			out = append(out, parseLink(i.From, i.End))
		}
	}
	return out, nil
}

// ReplaceLinks is ReplacePrefixes for a set of interfaces' names.
func ReplaceLinks(set string, was, is []string) (ws []Write) {
	if slices.Equal(was, is) {
		return nil
	}
	for _, step := range []struct {
		names []string
		add   bool
	}{{was, false}, {is, true}} {
		for _, name := range step.names {
			from, end := link(name)
			ws = append(ws, Write{Set: set, Key: from, End: end, Add: step.add, Del: !step.add})
		}
	}
	return ws
}

// link returns the names that a pattern matches, as an interval of sixteen-byte names that
// excludes its end.
func link(pattern string) (from, end []byte) {
	from, end = make([]byte, unix.IFNAMSIZ), make([]byte, unix.IFNAMSIZ)
	name, many := strings.CutSuffix(pattern, "*")
	n := copy(from, name)
	copy(end, from)
	last := unix.IFNAMSIZ - 1 // one name only: the end is the next possible name
	if many && n > 0 {
		last = n - 1
	}
	end[last]++
	return from, end
}

// parseLink is the inverse of link.
func parseLink(from, end []byte) string {
	name := string(bytes.TrimRight(from, "\x00"))
	if len(end) > 0 && end[len(end)-1] == 0 {
		return name + "*"
	}
	return name
}
