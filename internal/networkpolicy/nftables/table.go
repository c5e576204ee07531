package nftables

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

//go:embed policy.nft
var source string

// comment is the comment of each rule: the program's file.
const comment = "policy.nft"

type object = map[string]any

var families = []object{
	{"Name": "4", "IP": "ip", "Type": "ipv4_addr", "Proto": "ipv4", "Lengths": object{"coarse": lengths(networkpolicy.Coarse, true), "fine": lengths(0, true)}},
	{"Name": "6", "IP": "ip6", "Type": "ipv6_addr", "Proto": "ipv6", "Lengths": object{"coarse": lengths(networkpolicy.Coarse, false), "fine": lengths(0, false)}},
}

// suffixes of the sets for an address family.
var suffixes = []string{"4", "6"}

// lengths returns how the program masks an address, and adds the length to a view, for each length of a kind of views.
func lengths(v networkpolicy.View, is4 bool) (all []object) {
	counts := v.Lengths(is4)
	for _, n := range counts {
		raw := make([]byte, counts[0]/8)
		for i := range n {
			raw[i/8] |= 0x80 >> (i % 8)
		}
		mask, _ := netip.AddrFromSlice(raw)
		o := object{"Mask": fmt.Sprint(" & ", mask), "Length": fmt.Sprintf(" | %#x", n)}
		if n == counts[0] {
			o["Mask"] = ""
		}
		if n == 0 {
			o["Length"] = ""
		}
		all = append(all, o)
	}
	return all
}

// program returns the kernel's program. With reject it rejects denied packets instead of dropping them.
func program(reject bool) *nft.Ruleset {
	return &nft.Ruleset{Source: source, Data: map[string]any{
		"Reject": reject, "Refused": classid(uint32(numbers.PriorityRefused)),
		"Comment": comment, "Priority": numbers.HookPolicy, "InputPriority": numbers.HookPolicyInput, "Families": families,
		"Proxy":      fmt.Sprintf("%#x", numbers.MarkUserspace),
		"Challenge":  classid(uint32(numbers.PriorityChallenge)),
		"Directions": []object{{"Name": "egress", "Named": true, "Local": "saddr", "Peer": "daddr", "Denied": "0:3", "Isolated": classid(networkpolicy.IsolatedEgress)}, {"Name": "ingress", "Named": false, "Local": "daddr", "Peer": "saddr", "Denied": "0:4", "Isolated": classid(networkpolicy.IsolatedIngress)}},
		"Rungs": []object{
			{"If": "meta priority != 0:1", "Set": ""}, // the last rung has every address
			{"If": "meta priority 0:2", "Set": "meta priority >= 8000:0 meta priority set 0:2"},
			{"If": "", "Set": "meta priority set 0:1"},
		},
	}}
}

// classid formats a number as nft writes a priority.
func classid[N ~uint32](n N) string { return fmt.Sprintf("%x:%x", n>>16, n&0xffff) }

// A Table is the node's part of nf_tables that isolates pods. It belongs to one goroutine.
type Table struct {
	// Reject rejects denied packets where the kernel can, instead of dropping them. Set it before the first call.
	Reject bool

	table *nft.Table
	watch *nft.Watch
	// restored means that the last Sync found rules or elements that another program had changed, or that an agent
	// before this one had not written.
	restored bool
	// synced means that the kernel holds the table of the last Sync. networks are the ranges of that table.
	synced   bool
	networks []networkpolicy.Range
	// rangeOrder is the byte order of a class in keys of ranges.
	rangeOrder binary.AppendByteOrder
}

// New returns a Table. It does not touch the kernel.
func New() *Table {
	t := nft.New(numbers.TablePolicy)
	return &Table{table: t, watch: t.Watch()}
}

// FailWrites makes every write call f first, for tests.
func (t *Table) FailWrites(f func() error) { t.table.FailWrites(f) }

// Close frees the resources of Sync. The kernel's table stays.
func (t *Table) Close() {
	t.synced = false
	t.watch.Reset()
	t.table.Close()
}

// Delete removes the table: all pods may talk with everyone.
func (t *Table) Delete(ctx context.Context) error {
	t.Close()
	if err := t.table.Delete(ctx); err != nil {
		return fmt.Errorf("delete the rules of NetworkPolicies: %w", err)
	}
	return nil
}

// Found reports whether there is a table. A kernel without nf_tables has none.
func (t *Table) Found(ctx context.Context) (bool, error) {
	if able, err := t.table.Supported(ctx); err != nil || !able {
		return false, err
	}
	chains, err := t.table.Chains(ctx)
	return len(chains) > 0, err
}

// Held is what the kernel had before this process, as in networkpolicy.Table.
type Held struct {
	Sandboxes         map[netip.Addr]networkpolicy.Sandbox
	Isolated, Cluster [2]map[netip.Addr]bool
}

// Adopt loads the program if there is none. It returns what an agent before this one has written. The program of
// another version goes on until Sync has filled the sets of this one.
func (t *Table) Adopt(ctx context.Context) (*Held, error) {
	defer t.Close()
	chains, err := t.table.Chains(ctx)
	if err == nil && !chains["postrouting"] { // the programs of all versions have this hook
		_, err = t.table.Load(ctx, program(t.Reject), false)
	}
	if err != nil {
		return nil, fmt.Errorf("load the rules of NetworkPolicies: %w", err)
	}
	held := &Held{Sandboxes: map[netip.Addr]networkpolicy.Sandbox{}}
	err = t.readAddrs(ctx, "sandboxes", func(a netip.Addr, comment string) { held.Sandboxes[a] = parseSandbox(comment) })
	for d := networkpolicy.Egress; d <= networkpolicy.Ingress && err == nil; d++ {
		held.Isolated[d], held.Cluster[d] = map[netip.Addr]bool{}, map[netip.Addr]bool{}
		err = errors.Join(
			t.readAddrs(ctx, "isolated-"+d.String(), func(a netip.Addr, _ string) { held.Isolated[d][a] = true }),
			t.readAddrs(ctx, "cluster-"+d.String(), func(a netip.Addr, _ string) { held.Cluster[d][a] = true }))
	}
	if err != nil {
		return nil, fmt.Errorf("read the pods that were noted: %w", err)
	}
	return held, nil
}

// readAddrs calls f for each element of the sets of both families.
func (t *Table) readAddrs(ctx context.Context, set string, f func(a netip.Addr, comment string)) error {
	for _, suffix := range suffixes {
		err := t.table.Elements(ctx, set+suffix, func(e nft.Element) error {
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				f(a, e.Comment)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Sync makes the kernel hold a table. changes are the differences from the table of the last successful Sync. It
// returns the number of elements that it wrote.
func (t *Table) Sync(ctx context.Context, want *networkpolicy.Table, changes *networkpolicy.Changes) (written int, err error) {
	defer func() {
		if err != nil {
			t.Close()
			err = fmt.Errorf("write NetworkPolicies to the kernel: %w", err)
		}
	}()
	t.restored = false
	if !t.synced {
		written, err = t.restore(ctx, want)
		t.restored = written > 0
		return written, err
	}
	change, _, err := t.watch.Look(ctx)
	if err != nil || change != nft.Nothing {
		if err == nil {
			written, err = t.restore(ctx, want)
			t.restored = written > 0 || change == nft.Rules
		}
		return written, err
	}
	ws := t.changed(want, changes)
	if len(ws) == 0 {
		return 0, nil
	}
	if err = t.table.Commit(ctx, nil, ws); err == nil {
		err = t.watch.End(ctx, false)
	}
	t.networks = want.Networks
	return len(ws), err
}

// Restored reports whether the last Sync restored a table that had allowed or denied something else for a while.
func (t *Table) Restored() bool { return t.restored }

// restore reads the kernel and writes the differences.
func (t *Table) restore(ctx context.Context, want *networkpolicy.Table) (written int, err error) {
	t.synced = false
	err = t.watch.Keep(ctx, program(t.Reject), t.damaged, func(ctx context.Context) error {
		if err := t.readOrder(ctx); err != nil {
			return err
		}
		ws, err := t.differences(ctx, want)
		if err != nil {
			return err
		}
		written = len(ws)
		return t.table.Commit(ctx, t.addVerdicts, ws)
	})
	t.synced, t.networks = err == nil, want.Networks
	return written, err
}

// addVerdicts adds the chains to which decisions lead, because Declare makes only sets.
func (t *Table) addVerdicts(c *nftables.Conn) (queued bool, err error) {
	c.AddChain(t.table.Chain("allowed"))
	c.AddChain(t.table.Chain("denied"))
	if t.Reject {
		c.AddChain(t.table.Chain("refused"))
	}
	return true, nil
}

// readOrder finds the byte order of classes in ranges, which depends on the program nft that loaded the rules.
func (t *Table) readOrder(ctx context.Context) error {
	t.rangeOrder = binary.NativeEndian
	return t.table.Elements(ctx, "byte-order", func(e nft.Element) error {
		if len(e.Key) > 8 && string(e.Key[4:8]) == "\x00\x00\x00\x01" {
			t.rangeOrder = binary.BigEndian
		}
		return nil
	})
}

// ruleCount is the number of rules of the program.
const ruleCount = 1 + (1 + 2 + 4 + 1) + (2 + 4 + 2) + 4*(3+3*3+2+2) + 2*5 + 4*(4+3+1) + 2*(5+9+9+33) + (4 + 8) + (3 + 2)

// rejectRuleCount is the number of further rules of the program that rejects.
const rejectRuleCount = (1 + 2) + 1 + (2 + 8 + 1) + 1

// damaged reports whether the table has other rules than the program's.
func (t *Table) damaged(ctx context.Context) (bool, error) {
	sum := ruleCount
	if t.Reject {
		sum += rejectRuleCount
	}
	return t.table.Damaged(ctx, comment, sum)
}
