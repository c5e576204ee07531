package fence

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// forwardRules are constant. They forward a packet only while its TTL is above 2. So a packet does not circle for ever
// between two nodes that name each other because one of them hangs.
//
//go:embed former.nft
var forwardRules string

var forwardRemoval = fmt.Sprintf("add table ip %s\ndelete table ip %[1]s\nadd table ip6 %[1]s\ndelete table ip6 %[1]s\n", numbers.TableFormer)

// forwardReload loads the rules again. The elements for addresses by BGP stay: they are as right as the connections in
// the kernel, which also outlive a process.
var forwardReload = fmt.Sprintf("add table ip %[1]s\nflush table ip %[1]s\nadd table ip6 %[1]s\nflush table ip6 %[1]s\n%[2]s\nflush map ip %[1]s former\nflush map ip6 %[1]s former\n",
	numbers.TableFormer, forwardRules)

// The table's sets and maps.
const (
	previousMap    = "former"
	releasedSet    = "released"
	routedFirstMap = "routed-first"
	routedNextMap  = "routed-next"
	peersSet       = "peers"
	errorRootMap   = "error-root"
	errorLeftMap   = "error-left"
	errorRightMap  = "error-right"
)

// A Forwarding names the nodes that get packets in the middle of connections that this node does not know. The values
// are the nodes' addresses on a network of this node.
type Forwarding struct {
	// Previous has the previous owner of each address of layer 2.
	Previous map[netip.Addr]netip.Addr
	// First has the target of packets from a router, Next the target of packets that another node has passed on. If
	// First is nil, the kernel keeps its elements of First, Next, Errors and Peers.
	First, Next map[netip.Addr]netip.Addr
	// Errors has the targets of ICMP errors for the addresses in First, for IPv4 and IPv6.
	Errors [2]ErrorTargets
	Peers  []string // the MACs of the other nodes
}

// An ErrorTargets is this node's place in the tree of nodes that ICMP errors visit. The zero Addr stands for no node.
type ErrorTargets struct {
	Root        netip.Addr // gets a router's error
	Left, Right netip.Addr // get a copy of the error after this node
}

// An element belongs to a set or map of the table.
type element struct{ family, set, key string }

// elements returns the table's elements with the values of the maps.
func (w Forwarding) elements() map[element]string {
	all := map[element]string{}
	for set, values := range map[string]map[netip.Addr]netip.Addr{previousMap: w.Previous, routedFirstMap: w.First, routedNextMap: w.Next} {
		for a, node := range values {
			all[element{familyOf(a), set, a.String()}] = " : " + node.String()
		}
	}
	if w.First == nil {
		return all
	}
	for i, proto := range []int{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6} {
		for set, node := range map[string]netip.Addr{errorRootMap: w.Errors[i].Root, errorLeftMap: w.Errors[i].Left, errorRightMap: w.Errors[i].Right} {
			if node.IsValid() {
				all[element{[]string{"ip", "ip6"}[i], set, strconv.Itoa(proto)}] = " : " + node.String()
			}
		}
	}
	for _, mac := range w.Peers {
		all[element{"ip", peersSet, mac}], all[element{"ip6", peersSet, mac}] = "", ""
	}
	return all
}

// SetForwarding replaces the targets. The next Hold writes them.
func (f *Fence) SetForwarding(w Forwarding) {
	f.forwardWant, f.routedKnown = w.elements(), w.First != nil
}

// ForwardingError returns why the kernel cannot forward packets; nil: it can.
func (f *Fence) ForwardingError() error { return f.forwardErr }

// loadForwarding loads the tables. Without them the node still announces.
func (f *Fence) loadForwarding(ctx context.Context) {
	f.forward, f.routedKept = map[element]string{}, true
	if err := f.table.Run(ctx, forwardReload); err == nil {
		f.forwardErr = nil
		return
	}
	f.routedKept = false
	if err := f.table.Run(ctx, forwardRemoval+forwardRules); err != nil { // the table of another version may have other types
		f.forwardErr = fmt.Errorf("load table %s: %w [does the kernel have CONFIG_NFT_DUP_IPV4, CONFIG_NFT_DUP_IPV6 and CONFIG_NFT_LIMIT?]", numbers.TableFormer, err)
		return
	}
	f.forwardErr = nil
}

// forwardChanges returns the commands that write the targets. atOnce says that they must be one transaction.
func (f *Fence) forwardChanges() (all []string, atOnce bool) {
	if f.forwardErr != nil {
		return nil, false
	}
	if f.routedKept && f.routedKnown {
		atOnce = true
		for _, family := range []string{"ip", "ip6"} {
			for _, name := range []string{routedFirstMap, routedNextMap, errorRootMap, errorLeftMap, errorRightMap} {
				all = append(all, fmt.Sprintf("flush map %s %s %s\n", family, numbers.TableFormer, name))
			}
			all = append(all, fmt.Sprintf("flush set %s %s %s\n", family, numbers.TableFormer, peersSet))
		}
	}
	write := func(verb string, from, except map[element]string, withValue bool) {
		for _, e := range slices.SortedFunc(maps.Keys(from), element.compare) {
			value := from[e]
			if other, same := except[e]; same && other == value {
				continue
			} else if !withValue {
				value = ""
			}
			all = append(all, fmt.Sprintf("%s element %s %s %s { %s%s }\n", verb, e.family, numbers.TableFormer, e.set, e.key, value))
		}
	}
	if !maps.Equal(f.forward, f.forwardWant) {
		write("delete", f.forward, f.forwardWant, false)
		write("add", f.forwardWant, f.forward, true)
	}
	return all, atOnce
}

// releaseTime is the timeout of the set released in former.nft.
const releaseTime = 5 * time.Second

// releaseChanges returns the commands for addresses that this node holds from now on, or releases. The kernel removes the
// elements of released addresses by itself. Deleting an element that is not there is an error, so it is added first.
func (f *Fence) releaseChanges(add, drop []netip.Addr) (all []string) {
	if f.forwardErr != nil {
		return nil
	}
	command := func(verb string, a netip.Addr) string {
		return fmt.Sprintf("%s element %s %s %s { %s }\n", verb, familyOf(a), numbers.TableFormer, releasedSet, a)
	}
	maps.DeleteFunc(f.released, func(_ netip.Addr, at time.Time) bool { return time.Since(at) > 2*releaseTime })
	for _, a := range drop {
		f.released[a] = time.Now()
		all = append(all, command("add", a))
	}
	for _, a := range add {
		if !f.released[a].IsZero() {
			all = append(all, command("add", a)+command("delete", a))
		}
	}
	return all
}

func familyOf(a netip.Addr) string {
	if a.Is6() {
		return "ip6"
	}
	return "ip"
}

func (e element) compare(o element) int {
	return cmp.Or(strings.Compare(e.family, o.family), strings.Compare(e.set, o.set), strings.Compare(e.key, o.key))
}

// forwardWritten records that the kernel has the wanted targets.
func (f *Fence) forwardWritten() {
	f.forward, f.routedKept = f.forwardWant, f.routedKept && !f.routedKnown
}

// runForward runs the commands of forwardChanges.
func (f *Fence) runForward(ctx context.Context, all []string, atOnce bool) error {
	size := elementsPerRun
	if atOnce {
		size = max(1, len(all))
	}
	for part := range slices.Chunk(all, size) {
		if err := f.table.Run(ctx, strings.Join(part, "")); err != nil {
			return err
		}
	}
	f.forwardWritten()
	return nil
}
