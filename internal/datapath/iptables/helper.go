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

// An elem is one element of one of the helper's sets. to is the chain of a verdict. The fields are strings, so that an
// elem can be a map's key.
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

// helperSets returns the sets with elements for Services.
func helperSets() []string {
	all := []string{affinityLists, affinityUpdates}
	for _, set := range []string{affinityIDs, affinityIDs + external, affinityIDsNodeports, affinityIDsNodeports + external, string(nftset.ClusterIPs), string(nftset.ExternalAddresses)} {
		all = append(all, inFamily(set, true), inFamily(set, false))
	}
	return all
}

// A helper is the nf_tables table next to iptables: helper.nft.tmpl.
type helper struct {
	table *nft.Table
	watch *nft.Watch
	elems map[elem]int // the elements in the kernel, and how many frontends use each
}

func newHelper() *helper {
	t := nft.New(numbers.TableIPTables)
	return &helper{table: t, watch: t.Watch()}
}

func (h *helper) ruleset() *nft.Ruleset {
	return &nft.Ruleset{
		Source: helperText, Data: map[string]any{"Marked": fmt.Sprintf("%#x", markChosen)},
		DynamicChain: func(chain string) bool {
			_, ok := recordingOf(chain)
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

// settings returns the writes that change the helper's settings to s.
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

// An elemChange is a change of the helper's elements: the writes before and after the rules of iptables.
type elemChange struct {
	before, after []nft.Write
	newChains     []string
	oldChains     []string
	constantRules bool // the rules of the constant chains are written too
}

// planElems returns the change from the elements in old to the elements in next.
func planElems(old, next map[elem]bool) (change elemChange) {
	type keyOf struct{ set, key string }
	taken := map[keyOf]bool{}
	for e := range next {
		if !old[e] {
			taken[keyOf{e.set, e.key}] = true
		}
	}
	var add []nft.Write
	for _, e := range order(next) {
		if !old[e] {
			add = append(add, e.write(true))
		}
	}
	for _, e := range order(old) {
		switch {
		case next[e]:
		case taken[keyOf{e.set, e.key}]: // the key gets another value
			change.before = append(change.before, e.write(false))
		default:
			change.after = append(change.after, e.write(false))
		}
	}
	change.before = append(change.before, add...)
	from, to := updateChains(old), updateChains(next)
	for name := range to {
		if !from[name] {
			change.newChains = append(change.newChains, name)
		}
	}
	for name := range from {
		if !to[name] && name != "" {
			change.oldChains = append(change.oldChains, name)
		}
	}
	return change
}

// order sorts elements by set and key, because neighbours share a message to the kernel.
func order(all map[elem]bool) []elem {
	return slices.SortedFunc(maps.Keys(all), func(a, b elem) int {
		if c := strings.Compare(a.set, b.set); c != 0 {
			return c
		}
		return strings.Compare(a.key, b.key)
	})
}

// add adds new chains and elements.
func (h *helper) add(ctx context.Context, change elemChange) error {
	return h.table.Commit(ctx, func(c *nftables.Conn) (bool, error) {
		if change.constantRules {
			h.writeConstantChains(c)
		}
		for _, name := range change.newChains {
			if err := h.writeUpdateChain(c, name); err != nil {
				return false, err
			}
		}
		return change.constantRules || len(change.newChains) > 0, nil
	}, change.before)
}

// remove removes old elements and chains.
func (h *helper) remove(ctx context.Context, change elemChange) error {
	if err := h.table.Commit(ctx, nil, change.after); err != nil {
		return err
	}
	return h.table.Commit(ctx, func(c *nftables.Conn) (bool, error) {
		for _, name := range change.oldChains {
			c.FlushChain(h.table.Chain(name))
			c.DelChain(h.table.Chain(name))
		}
		return len(change.oldChains) > 0, nil
	}, nil)
}

// Registers of four bytes. A key occupies several registers from keyReg on.
const (
	keyReg   = unix.NFT_REG32_00
	dataReg  = unix.NFT_REG32_08
	savedReg = unix.NFT_REG32_12
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

// writeConstantChains writes the rules of the chains that the ruleset leaves empty.
func (h *helper) writeConstantChains(c *nftables.Conn) {
	for _, name := range constantChains() {
		c.FlushChain(c.AddChain(h.table.Chain(name)))
	}
	for _, is4 := range nftset.Families {
		h.writeLookup(c, is4)
	}
	last := h.table.Chain(restoreMarkChain)
	h.rule(c, last, readPriority(savedReg), setMark(savedReg), number(savedReg, 0), setPriority(savedReg))
}

// load loads the ruleset into the kernel; again loads it even if the kernel has it. It writes the chains that look
// clients up before the ruleset leads packets to them: otherwise known clients would be taken for new clients during an
// upgrade.
func (h *helper) load(ctx context.Context, again bool) error {
	found, err := h.table.Declare(ctx, h.ruleset())
	if err != nil || found == nft.Unchanged && !again {
		return err
	}
	if err := h.table.Commit(ctx, func(c *nftables.Conn) (bool, error) { h.writeConstantChains(c); return true, nil }, nil); err != nil {
		return err
	}
	loaded, err := h.table.Load(ctx, h.ruleset(), again)
	if err == nil && loaded != nft.Unchanged {
		err = h.table.Prune(ctx, h.ruleset())
	}
	return err
}

// keys returns the elements of counts.
func keys(all map[elem]int) map[elem]bool {
	out := make(map[elem]bool, len(all))
	for e := range all {
		out[e] = true
	}
	return out
}
