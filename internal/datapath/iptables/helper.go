package iptables

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

//go:embed helper.nft.tmpl
var helperText string

// An elem is one element of a set of the helper's; to is the chain that a verdict leads
// to. Its fields are strings so that it can be a map's key.
type elem struct{ set, key, data, to string }

func (e elem) write(add bool) nft.Write {
	w := nft.Write{Set: e.set, Key: []byte(e.key), Add: add, Del: !add}
	if add {
		w.Data, w.Goto, w.Comment = []byte(e.data), e.to, e.to
		if e.to != "" {
			w.Data = nil
		}
	}
	return w
}

// helperSets are those whose elements come and go with Services.
func helperSets() []string {
	all := []string{affinityLists, affinityUpdates}
	for _, set := range []string{affinityIDs, affinityIDs + external, affinityIDsNodeports, affinityIDsNodeports + external, string(nftset.ClusterIPs)} {
		all = append(all, inFamily(set, true), inFamily(set, false))
	}
	return all
}

// A helper is the table beside iptables: helper.nft.tmpl.
type helper struct {
	table *nft.Table
	watch *nft.Watch
	elems map[elem]int // what it holds, and by how many frontends
}

func newHelper() *helper {
	t := nft.New(numbers.TableIPTables)
	return &helper{table: t, watch: t.Watch()}
}

func (h *helper) program() *nft.Program {
	return &nft.Program{
		Source: helperText, Data: map[string]any{"Marked": fmt.Sprintf("%#x", markChosen)},
		Keep: func(chain string) bool {
			_, ok := updateOf(chain)
			return ok || slices.Contains(constantChains(), chain)
		},
	}
}

// read returns the elements that the kernel holds.
func (h *helper) read(ctx context.Context) (map[elem]bool, error) {
	all := map[elem]bool{}
	for _, set := range helperSets() {
		err := h.table.Elements(ctx, set, func(e nft.Element) error {
			all[elem{set, string(e.Key), string(e.Data), e.Comment}] = true
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// settings are the writes that make the helper's settings s.
func (h *helper) settings(ctx context.Context, s service.Settings) (ws []nft.Write, err error) {
	for _, is4 := range []bool{true, false} {
		for _, set := range []struct {
			name string
			want []netip.Prefix
		}{{"pods", s.Pods}, {"nodeport-addresses", s.NodePorts}, {"service-cidrs", s.ServiceCIDRs}} {
			have, err := h.table.Prefixes(ctx, inFamily(set.name, is4))
			if err != nil {
				return nil, err
			}
			ws = append(ws, nft.ReplacePrefixes(inFamily(set.name, is4), is4, have, set.want)...)
		}
	}
	have, err := h.table.Links(ctx, "pod-interfaces")
	if err != nil {
		return nil, err
	}
	want := slices.Compact(slices.Sorted(slices.Values(s.PodInterfaces)))
	return append(ws, nft.ReplaceLinks("pod-interfaces", have, want)...), nil
}

// An elemChange is the change of the helper's elements: before the rules of iptables, and after them.
type elemChange struct {
	before, after []nft.Write
	newChains     []string
	oldChains     []string
	rules         bool // the constant rules are written too
}

// planElems makes the change from the elements that are there to those that are wanted.
func planElems(was, is map[elem]bool) (s elemChange) {
	type keyOf struct{ set, key string }
	taken := map[keyOf]bool{}
	for e := range is {
		if !was[e] {
			taken[keyOf{e.set, e.key}] = true
		}
	}
	var add []nft.Write
	for _, e := range order(is) {
		if !was[e] {
			add = append(add, e.write(true))
		}
	}
	for _, e := range order(was) {
		switch {
		case is[e]:
		case taken[keyOf{e.set, e.key}]: // another value for the same key
			s.before = append(s.before, e.write(false))
		default:
			s.after = append(s.after, e.write(false))
		}
	}
	s.before = append(s.before, add...)
	from, to := updateChains(was), updateChains(is)
	for name := range to {
		if !from[name] {
			s.newChains = append(s.newChains, name)
		}
	}
	for name := range from {
		if !to[name] && name != "" {
			s.oldChains = append(s.oldChains, name)
		}
	}
	return s
}

// order sorts elements by set and key: neighbours share a message to the kernel.
func order(all map[elem]bool) []elem {
	return slices.SortedFunc(maps.Keys(all), func(a, b elem) int {
		if c := strings.Compare(a.set, b.set); c != 0 {
			return c
		}
		return strings.Compare(a.key, b.key)
	})
}

func (h *helper) first(ctx context.Context, s elemChange) error {
	return h.table.Commit(ctx, func(c *nftables.Conn) (bool, error) {
		if s.rules {
			h.constant(c)
		}
		for _, name := range s.newChains {
			if err := h.writeUpdateChain(c, name); err != nil {
				return false, err
			}
		}
		return s.rules || len(s.newChains) > 0, nil
	}, s.before)
}

func (h *helper) last(ctx context.Context, s elemChange) error {
	if err := h.table.Commit(ctx, nil, s.after); err != nil {
		return err
	}
	return h.table.Commit(ctx, func(c *nftables.Conn) (bool, error) {
		for _, name := range s.oldChains {
			c.FlushChain(h.table.Chain(name))
			c.DelChain(h.table.Chain(name))
		}
		return len(s.oldChains) > 0, nil
	}, nil)
}

// Registers of four bytes: a key begins at the first, a value is apart from it.
const (
	keyReg  = unix.NFT_REG32_00
	dataReg = unix.NFT_REG32_08
	keepReg = unix.NFT_REG32_12
)

func readPriority(reg uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg} }
func setPriority(reg uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg, SourceRegister: true}
}
func readMark(reg uint32) expr.Any { return &expr.Ct{Key: expr.CtKeyMARK, Register: reg} }
func setMark(reg uint32) expr.Any {
	return &expr.Ct{Key: expr.CtKeyMARK, Register: reg, SourceRegister: true}
}
func number(reg, v uint32) expr.Any {
	return &expr.Immediate{Register: reg, Data: binaryutil.NativeEndian.PutUint32(v)}
}

// constant writes the rules of the chains that the program leaves empty.
func (h *helper) constant(c *nftables.Conn) {
	for _, name := range constantChains() {
		c.FlushChain(c.AddChain(h.table.Chain(name)))
	}
	for _, is4 := range nftset.Families {
		h.lookup(c, is4)
	}
	last := h.table.Chain(restoreMarkChain)
	h.rule(c, last, readPriority(keepReg), setMark(keepReg), number(keepReg, 0), setPriority(keepReg))
}

// load loads the program into the kernel. The rules that look clients up are there before the program that leads
// packets to them, so that the clients of an agent of another version stay at their endpoints.
func (h *helper) load(ctx context.Context, again bool) error {
	found, err := h.table.Declare(ctx, h.program())
	if err != nil || found == nft.Unchanged && !again {
		return err
	}
	if err := h.table.Commit(ctx, func(c *nftables.Conn) (bool, error) { h.constant(c); return true, nil }, nil); err != nil {
		return err
	}
	loaded, err := h.table.Load(ctx, h.program(), again)
	if err == nil && loaded != nft.Unchanged {
		err = h.table.Prune(ctx, h.program())
	}
	return err
}

// keys are the elements, however many frontends need them.
func keys(all map[elem]int) map[elem]bool {
	out := make(map[elem]bool, len(all))
	for e := range all {
		out[e] = true
	}
	return out
}
