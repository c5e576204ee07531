package fence

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/numbers"
)

// formerProgram is constant. It takes one hop from each packet: two nodes that name each other, of
// which one hangs, do not pass one on for ever.
//
//go:embed former.nft
var formerProgram string

var formerRemoval = fmt.Sprintf("add table ip %s\ndelete table ip %[1]s\nadd table ip6 %[1]s\ndelete table ip6 %[1]s\n", numbers.TableFormer)

// Former says which node, by its address on a network of this one, had an address before: it knows
// the connections that are open. It has an effect with the next Hold.
func (f *Fence) Former(want map[netip.Addr]netip.Addr) { f.formerWant = want }

// FormerError says why the kernel cannot send packets to former owners; nil: it can.
func (f *Fence) FormerError() error { return f.formerErr }

// loadFormer loads the tables, empty. Without them the node announces all the same.
func (f *Fence) loadFormer(ctx context.Context) {
	f.former = map[netip.Addr]netip.Addr{}
	if err := f.table.Run(ctx, formerRemoval+formerProgram); err != nil {
		f.formerErr = fmt.Errorf("load table %s: %w [does the kernel have CONFIG_NFT_DUP_IPV4 and CONFIG_NFT_DUP_IPV6?]", numbers.TableFormer, err)
		return
	}
	f.formerErr = nil
}

// formerChanges is what makes the kernel's maps what is wanted.
func (f *Fence) formerChanges() (all []string) {
	if f.formerErr != nil || maps.Equal(f.former, f.formerWant) {
		return nil
	}
	write := func(verb string, a netip.Addr, value string) {
		family := "ip"
		if a.Is6() {
			family = "ip6"
		}
		all = append(all, fmt.Sprintf("%s element %s %s former { %v%s }\n", verb, family, numbers.TableFormer, a, value))
	}
	for _, a := range slices.SortedFunc(maps.Keys(f.former), netip.Addr.Compare) {
		if f.formerWant[a] != f.former[a] {
			write("delete", a, "")
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(f.formerWant), netip.Addr.Compare) {
		if f.formerWant[a] != f.former[a] {
			write("add", a, " : "+f.formerWant[a].String())
		}
	}
	return all
}

// changeFormer writes changes, some at a time.
func (f *Fence) changeFormer(ctx context.Context, all []string) error {
	for some := range slices.Chunk(all, elementsPerRun) {
		if err := f.table.Run(ctx, strings.Join(some, "")); err != nil {
			return err
		}
	}
	f.former = maps.Clone(f.formerWant)
	return nil
}
