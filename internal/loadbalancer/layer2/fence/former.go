package fence

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// formerProgram is constant. It takes one hop from each packet: two nodes that name each other, of
// which one hangs, do not pass one on for ever.
//
//go:embed former.nft
var formerProgram string

var formerRemoval = fmt.Sprintf("add table ip %s\ndelete table ip %[1]s\nadd table ip6 %[1]s\ndelete table ip6 %[1]s\n", numbers.TableFormer)

// formerAgain loads the rules anew and keeps what is in the maps of addresses that routers lead here: it is as right as the
// connections in the kernel, which the process before left too.
var formerAgain = fmt.Sprintf("add table ip %[1]s\nflush table ip %[1]s\nadd table ip6 %[1]s\nflush table ip6 %[1]s\n%[2]s\nflush map ip %[1]s former\nflush map ip6 %[1]s former\n",
	numbers.TableFormer, formerProgram)

// The sets and maps of the table.
const (
	formerSet      = "former"
	routedFirstSet = "routed-first"
	routedNextSet  = "routed-next"
	peersSet       = "peers"
)

// An Elsewhere says which nodes get packets in the middle of connections that this one does not know, by their addresses on a
// network of this one.
type Elsewhere struct {
	// Former had an address before.
	Former map[netip.Addr]netip.Addr
	// First gets a packet to an address that routers lead to several nodes, and Next one that another node has passed on. Nil: what
	// the kernel has of both, and of Peers, stays.
	First, Next map[netip.Addr]netip.Addr
	Peers       []string // the MACs of the other nodes
}

// An element is one of a set or map of the table.
type element struct{ family, set, key string }

// elements are what the table has to hold, and the values of those that maps have.
func (e Elsewhere) elements() map[element]string {
	all := map[element]string{}
	for set, values := range map[string]map[netip.Addr]netip.Addr{formerSet: e.Former, routedFirstSet: e.First, routedNextSet: e.Next} {
		for a, node := range values {
			family := "ip"
			if a.Is6() {
				family = "ip6"
			}
			all[element{family, set, a.String()}] = " : " + node.String()
		}
	}
	if e.First == nil {
		return all
	}
	for _, mac := range e.Peers {
		all[element{"ip", peersSet, mac}], all[element{"ip6", peersSet, mac}] = "", ""
	}
	return all
}

// Elsewhere says where packets go that this node does not know. It has an effect with the next Hold.
func (f *Fence) Elsewhere(e Elsewhere) {
	f.formerWant, f.routedKnown = e.elements(), e.First != nil
}

// FormerError says why the kernel cannot send packets to former owners; nil: it can.
func (f *Fence) FormerError() error { return f.formerErr }

// loadFormer loads the tables. Without them the node announces all the same.
func (f *Fence) loadFormer(ctx context.Context) {
	f.former, f.formerKept = map[element]string{}, true
	if err := f.table.Run(ctx, formerAgain); err == nil {
		f.formerErr = nil
		return
	}
	f.formerKept = false
	if err := f.table.Run(ctx, formerRemoval+formerProgram); err != nil { // those of another release may have other types
		f.formerErr = fmt.Errorf("load table %s: %w [does the kernel have CONFIG_NFT_DUP_IPV4 and CONFIG_NFT_DUP_IPV6?]", numbers.TableFormer, err)
		return
	}
	f.formerErr = nil
}

// formerChanges is what makes the kernel's maps what is wanted; whole: it must be done at once.
func (f *Fence) formerChanges() (all []string, whole bool) {
	if f.formerErr != nil {
		return nil, false
	}
	if f.formerKept && f.routedKnown {
		whole = true
		for _, family := range []string{"ip", "ip6"} {
			all = append(all, fmt.Sprintf("flush map %[1]s %[2]s %[3]s\nflush map %[1]s %[2]s %[4]s\nflush set %[1]s %[2]s %[5]s\n", family, numbers.TableFormer, routedFirstSet, routedNextSet, peersSet))
		}
	}
	write := func(verb string, from, but map[element]string, with bool) {
		for _, e := range slices.SortedFunc(maps.Keys(from), element.compare) {
			value := from[e]
			if other, same := but[e]; same && other == value {
				continue
			} else if !with {
				value = ""
			}
			all = append(all, fmt.Sprintf("%s element %s %s %s { %s%s }\n", verb, e.family, numbers.TableFormer, e.set, e.key, value))
		}
	}
	if !maps.Equal(f.former, f.formerWant) {
		write("delete", f.former, f.formerWant, false)
		write("add", f.formerWant, f.former, true)
	}
	return all, whole
}

func (e element) compare(o element) int {
	return cmp.Or(strings.Compare(e.family, o.family), strings.Compare(e.set, o.set), strings.Compare(e.key, o.key))
}

// formerDone notes that the kernel has what is wanted.
func (f *Fence) formerDone() {
	f.former, f.formerKept = f.formerWant, f.formerKept && !f.routedKnown
}

// changeFormer writes changes, some at a time.
func (f *Fence) changeFormer(ctx context.Context, all []string, whole bool) error {
	some := elementsPerRun
	if whole {
		some = max(1, len(all))
	}
	for part := range slices.Chunk(all, some) {
		if err := f.table.Run(ctx, strings.Join(part, "")); err != nil {
			return err
		}
	}
	f.formerDone()
	return nil
}
