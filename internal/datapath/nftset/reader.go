package nftset

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"go4.org/netipx"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// A Reader reads one set of a table after the other. After the first error its methods do nothing, and Err returns the
// error. A missing set counts as empty: the table may be that of another version.
type Reader struct {
	ctx    context.Context // of the whole read
	table  *nft.Table
	counts map[string]int // the number of elements in each set that was read; an interval counts once
	err    error
}

func newReader(ctx context.Context, t *nft.Table) *Reader {
	return &Reader{ctx: ctx, table: t, counts: map[string]int{}}
}

// Ensure returns the value of a key. A missing key gets a zero value.
func Ensure[K comparable, V any](all map[K]*V, k K) *V {
	v := all[k]
	if v == nil {
		v = new(V)
		all[k] = v
	}
	return v
}

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Each calls f for every element of a set.
func (r *Reader) Each(name string, f func(nft.Element) error) {
	if r.err != nil {
		return
	}
	n := 0
	err := r.table.Elements(r.ctx, name, func(e nft.Element) error {
		n++
		return f(e)
	})
	r.noteError(err)
	r.counts[name] = n
}

// noteError stores an error, unless the error says that the set is missing.
func (r *Reader) noteError(err error) {
	if !errors.Is(err, os.ErrNotExist) {
		r.err = err
	}
}

// Frontends calls f for every element of a set with keys of frontends.
func (r *Reader) Frontends(s Set, is4, nodePort bool, f func(service.Key, nft.Element) error) {
	r.Each(s.Name(is4), func(e nft.Element) error {
		k, err := ParseFrontendKey(e.Key, is4, nodePort)
		if err != nil {
			return err
		}
		return f(k, e)
	})
}

// Sources reads the sources of all frontends of a family. at returns the place to store them.
func (r *Reader) Sources(is4 bool, at func(service.Key) *Sources) {
	r.Frontends(SourceRestricted, is4, false, func(k service.Key, _ nft.Element) error {
		at(k).Restricted = true
		return nil
	})
	r.Each(SourceRanges.Name(is4), func(e nft.Element) error {
		k, one, err := sourceRange(e, is4)
		if err != nil {
			return err
		}
		s := at(k)
		s.Ranges = append(s.Ranges, one)
		slices.SortFunc(s.Ranges, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
		return nil
	})
}

// Addrs calls f for each address of a set. The key may have more fields behind the address.
func (r *Reader) Addrs(s Set, is4 bool, f func(netip.Addr)) {
	r.Each(s.Name(is4), func(e nft.Element) error {
		addr, ok := netip.AddrFromSlice(e.Key[:min(len(e.Key), AddrSize(is4))])
		if !ok {
			return fmt.Errorf("address has %d bytes", len(e.Key))
		}
		f(addr)
		return nil
	})
}

// Prefixes returns the prefixes in a set of intervals of addresses.
func (r *Reader) Prefixes(s Set, is4 bool) (all []netip.Prefix) {
	if r.err == nil {
		var err error
		all, err = r.table.Prefixes(r.ctx, s.Name(is4))
		r.noteError(err)
		r.countIntervals(s.Name(is4))
	}
	return all
}

// countIntervals counts the intervals of a set. The kernel has two elements for each.
func (r *Reader) countIntervals(name string) {
	n := 0
	r.noteError(r.table.Elements(r.ctx, name, func(e nft.Element) error {
		if !e.End {
			n++
		}
		return nil
	}))
	r.counts[name] = n
}

// Settings returns the settings in the sets of the table.
func (r *Reader) Settings() (s service.Settings) {
	for _, is4 := range Families {
		s.Pods = append(s.Pods, r.Prefixes(Pods, is4)...)
		s.ServiceCIDRs = append(s.ServiceCIDRs, r.Prefixes(ServiceCIDRs, is4)...)
		s.NodePorts = append(s.NodePorts, r.Prefixes(NodePortAddresses, is4)...)
	}
	if r.err == nil {
		var err error
		s.PodInterfaces, err = r.table.Links(r.ctx, PodInterfaces)
		r.noteError(err)
		r.countIntervals(PodInterfaces)
	}
	return s
}

// ChangeSettings returns the writes that replace the settings was by is. A set that differs is written as a whole, in
// one transaction if the writes are the first of a Commit.
func ChangeSettings(was, is service.Settings) (ws []nft.Write) {
	ws = nft.ReplaceLinks(PodInterfaces, was.PodInterfaces, is.PodInterfaces)
	for _, is4 := range Families {
		ws = append(ws, nft.ReplacePrefixes(ServiceCIDRs.Name(is4), is4, was.ServiceCIDRs, is.ServiceCIDRs)...)
		ws = append(ws, nft.ReplacePrefixes(Pods.Name(is4), is4, was.Pods, is.Pods)...)
		ws = append(ws, nft.ReplacePrefixes(NodePortAddresses.Name(is4), is4, was.NodePorts, is.NodePorts)...)
	}
	return ws
}
