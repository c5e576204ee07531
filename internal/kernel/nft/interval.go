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

// An Interval includes From and excludes End. End is nil if the interval has no end.
type Interval struct{ From, End []byte }

// Intervals reads a set of intervals, and returns them sorted. The kernel stores both ends of an interval as elements.
func (t *Table) Intervals(ctx context.Context, set string) ([]Interval, error) {
	var ends []Element
	err := t.Elements(ctx, set, func(e Element) error {
		ends = append(ends, e)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(ends, func(a, b Element) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 || a.End == b.End {
			return c
		}
		if a.End { // the end of the interval before comes first
			return -1
		}
		return 1
	})
	var out []Interval
	for i, e := range ends {
		switch {
		case e.End:
		case i+1 < len(ends) && ends[i+1].End:
			out = append(out, Interval{e.Key, ends[i+1].Key})
		default:
			out = append(out, Interval{From: e.Key})
		}
	}
	return out, nil
}

// Prefixes reads a set of intervals of addresses.
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

// ReplacePrefixes returns the writes that replace the prefixes from by the prefixes to in a set of one family. It
// ignores prefixes of the other family. If anything differs, it writes the whole set again. This is one transaction if
// the writes are the first of a Commit.
func ReplacePrefixes(set string, is4 bool, from, to []netip.Prefix) (ws []Write) {
	was, is := Ranges(from, is4), Ranges(to, is4)
	if slices.Equal(was, is) {
		return nil
	}
	for _, r := range was {
		ws = append(ws, Write{Set: set, Key: r.From().AsSlice(), End: behind(r.To()), Del: true})
	}
	for _, r := range is {
		ws = append(ws, Write{Set: set, Key: r.From().AsSlice(), End: behind(r.To()), Add: true})
	}
	return ws
}

// Ranges returns the prefixes of one family as sorted ranges that neither overlap nor touch, because a set of intervals
// accepts no others.
func Ranges(all []netip.Prefix, is4 bool) []netipx.IPRange {
	var b netipx.IPSetBuilder
	for _, p := range all {
		if p.IsValid() && p.Addr().Is4() == is4 {
			b.AddPrefix(p)
		}
	}
	s, err := b.IPSet()
	if err != nil {
		return nil // only an invalid prefix makes an error, and the loop left it out
	}
	return s.Ranges()
}

// behind returns the address after a as the end of an interval, or nil if a is the last address.
func behind(a netip.Addr) []byte {
	if next := a.Next(); next.IsValid() {
		return next.AsSlice()
	}
	return nil
}

// lastAddr returns the highest address of a family, which is the last address of an interval without an end.
func lastAddr(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte(bytes.Repeat([]byte{255}, 4)))
	}
	return netip.AddrFrom16([16]byte(bytes.Repeat([]byte{255}, 16)))
}

// Links reads a set of intervals of interface names, and returns them as patterns: "eth0", "veth*".
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

// ReplaceLinks is ReplacePrefixes for a set of interface names.
func ReplaceLinks(set string, from, to []string) (ws []Write) {
	if slices.Equal(from, to) {
		return nil
	}
	for _, step := range []struct {
		names []string
		add   bool
	}{{from, false}, {to, true}} {
		for _, pattern := range step.names {
			key, end := linkInterval(pattern)
			ws = append(ws, Write{Set: set, Key: key, End: end, Add: step.add, Del: !step.add})
		}
	}
	return ws
}

// linkInterval returns the names that a pattern matches, as an interval of names of sixteen bytes. It excludes end.
func linkInterval(pattern string) (from, end []byte) {
	from, end = make([]byte, unix.IFNAMSIZ), make([]byte, unix.IFNAMSIZ)
	name, many := strings.CutSuffix(pattern, "*")
	n := copy(from, name)
	copy(end, from)
	last := unix.IFNAMSIZ - 1 // a pattern for one name: the end is the next possible name
	if many && n > 0 {
		last = n - 1
	}
	end[last]++
	return from, end
}

// parseLink is the inverse of linkInterval.
func parseLink(from, end []byte) string {
	name := string(bytes.TrimRight(from, "\x00"))
	if len(end) > 0 && end[len(end)-1] == 0 {
		return name + "*"
	}
	return name
}
