package nftset

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Sources says which clients a frontend serves. Ranges has a meaning only if Restricted is set.
type Sources struct {
	Restricted bool
	Ranges     []netipx.IPRange // sorted
}

// SourcesOf returns the sources of a frontend.
func SourcesOf(f *service.Frontend) Sources {
	if len(f.Sources) == 0 {
		return Sources{}
	}
	return Sources{true, nft.Ranges(f.Sources, f.Addr.Addr().Is4())}
}

// Equal reports whether s and o are the same.
func (s Sources) Equal(o Sources) bool {
	return s.Restricted == o.Restricted && slices.Equal(s.Ranges, o.Ranges)
}

// Prefixes returns the ranges as prefixes.
func (s Sources) Prefixes() (all []netip.Prefix) {
	for _, r := range s.Ranges {
		all = append(all, r.Prefixes()...)
	}
	return all
}

// A SourceChange has the writes that change a frontend's sources, in three steps.
type SourceChange struct {
	Before []nft.Write // before the element of the frontend
	Open   []nft.Write // after the element of the frontend: its restriction ends
	After  []nft.Write // after Open: its ranges end
}

// ChangeSources returns the writes that replace the sources was of a frontend by is. The restriction is added before
// the frontend serves, and removed before its ranges. Ranges are replaced in one step, because the kernel rejects
// ranges that overlap.
func ChangeSources(k service.Key, was, is Sources) (c SourceChange) {
	is4, key := k.Addr.Addr().Is4(), FrontendKey(k)
	ranges := func(list []netipx.IPRange, del, add bool) (ws []nft.Write) {
		for _, r := range list {
			ws = append(ws, nft.Write{
				Set: SourceRanges.Name(is4), Del: del, Add: add,
				Key:  append(slices.Clone(key), r.From().AsSlice()...),
				Last: append(slices.Clone(key), r.To().AsSlice()...),
			})
		}
		return ws
	}
	if !slices.Equal(was.Ranges, is.Ranges) {
		if removed := ranges(was.Ranges, true, false); len(is.Ranges) > 0 {
			c.Before = append(removed, ranges(is.Ranges, false, true)...)
		} else {
			c.After = removed
		}
	}
	restricted := nft.Write{Set: SourceRestricted.Name(is4), Key: key, Add: is.Restricted, Del: was.Restricted}
	switch {
	case is.Restricted && !was.Restricted:
		c.Before = append(c.Before, restricted)
	case was.Restricted && !is.Restricted:
		c.Open = append(c.Open, restricted)
	}
	return c
}

// sourceRange reads an element of SourceRanges: a frontend and a range.
func sourceRange(e nft.Element, is4 bool) (service.Key, netipx.IPRange, error) {
	size := AddrSize(is4)
	if len(e.Key) < size || len(e.Last) != len(e.Key) {
		return service.Key{}, netipx.IPRange{}, fmt.Errorf("range has %d and %d bytes", len(e.Key), len(e.Last))
	}
	k, err := ParseFrontendKey(e.Key[:len(e.Key)-size], is4, false)
	from, _ := netip.AddrFromSlice(e.Key[len(e.Key)-size:])
	to, _ := netip.AddrFromSlice(e.Last[len(e.Last)-size:])
	return k, netipx.IPRangeFrom(from, to), err
}
