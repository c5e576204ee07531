package nftables

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

//go:embed policy.nft
var source string

// comment is each rule's: the program's file.
const comment = "policy.nft"

type object = map[string]string

var families = []object{{"Name": "4", "IP": "ip", "Type": "ipv4_addr"}, {"Name": "6", "IP": "ip6", "Type": "ipv6_addr"}}

// program is what the kernel runs.
func program(reject bool) *nft.Ruleset {
	return &nft.Ruleset{Source: source, Data: map[string]any{
		"Reject": reject, "Refused": classid(uint32(numbers.PriorityRefused)),
		"Comment": comment, "Priority": numbers.HookPolicy, "InputPriority": numbers.HookPolicyInput, "Families": families,
		"Proxy":      fmt.Sprintf("%#x", numbers.MarkUserspace),
		"Challenge":  classid(uint32(numbers.PriorityChallenge)),
		"Directions": []object{{"Name": "egress", "Local": "saddr", "Peer": "daddr", "Denied": "0:3", "Isolated": classid(networkpolicy.IsolatedEgress)}, {"Name": "ingress", "Local": "daddr", "Peer": "saddr", "Denied": "0:4", "Isolated": classid(networkpolicy.IsolatedIngress)}},
		"Rungs": []object{
			{"If": "", "Set": ""},
			{"If": "meta priority 0:2", "Set": "meta priority >= 8000:0 meta priority set 0:2"},
			{"If": "", "Set": "meta priority set 0:1"},
		},
	}}
}

// classid is a number as nft writes a priority.
func classid[N ~uint32](n N) string { return fmt.Sprintf("%x:%x", n>>16, n&0xffff) }

// A Table is the node's part of nf_tables that isolates pods. It belongs to one goroutine.
type Table struct {
	// Reject: what is denied is rejected, where the kernel can, and not dropped. It is set before
	// anything else.
	Reject bool

	table *nft.Table
	watch *nft.Watch
	// synced: the kernel holds what the last Sync wanted. blocks are its ranges.
	synced bool
	blocks []networkpolicy.Range
	// rangeOrder is the order of a class' bytes in keys of ranges.
	rangeOrder binary.AppendByteOrder
}

// New returns a Table. It does not touch the kernel.
func New() *Table {
	t := nft.New(numbers.TablePolicy)
	return &Table{table: t, watch: t.Watch()}
}

// FailWrites makes every write ask f first, for tests.
func (t *Table) FailWrites(f func() error) { t.table.FailWrites(f) }

// Close frees what Sync keeps open. What it wrote stays.
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

// Adopt loads the program, if there is none, and returns the sandboxes that an agent noted. The
// program of another release goes on until Sync has filled the sets of this one.
func (t *Table) Adopt(ctx context.Context) (map[netip.Addr]networkpolicy.Sandbox, error) {
	defer t.Close()
	chains, err := t.table.Chains(ctx)
	if err == nil && !chains["postrouting"] { // the hook of all releases' programs
		_, err = t.table.Load(ctx, program(t.Reject), false)
	}
	if err != nil {
		return nil, fmt.Errorf("load the rules of NetworkPolicies: %w", err)
	}
	all := map[netip.Addr]networkpolicy.Sandbox{}
	for _, f := range families {
		err := t.table.Elements(ctx, "sandboxes"+f["Name"], func(e nft.Element) error {
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				all[a] = parseSandbox(e.Comment)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the pods that were noted: %w", err)
		}
	}
	return all, nil
}

// Sync makes the kernel hold a table. changes are what differs from the table of the last
// Sync that succeeded. It returns how many elements it wrote.
func (t *Table) Sync(ctx context.Context, want *networkpolicy.Table, changes *networkpolicy.Changes) (written int, err error) {
	defer func() {
		if err != nil {
			t.Close()
			err = fmt.Errorf("write NetworkPolicies to the kernel: %w", err)
		}
	}()
	if !t.synced {
		return t.restore(ctx, want)
	}
	change, _, err := t.watch.Look(ctx)
	if err != nil || change != nft.Nothing {
		if err == nil {
			written, err = t.restore(ctx, want)
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
	t.blocks = want.Blocks
	return len(ws), err
}

// restore reads what the kernel holds and writes what differs.
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
	t.synced, t.blocks = err == nil, want.Blocks
	return written, err
}

// addVerdicts adds the chains that decisions lead to: Declare makes sets only.
func (t *Table) addVerdicts(c *nftables.Conn) (queued bool, err error) {
	c.AddChain(t.table.Chain("allowed"))
	c.AddChain(t.table.Chain("denied"))
	if t.Reject {
		c.AddChain(t.table.Chain("refused"))
	}
	return true, nil
}

// readOrder finds out how the program nft that loaded the rules compares classes in ranges.
func (t *Table) readOrder(ctx context.Context) error {
	t.rangeOrder = binary.NativeEndian
	return t.table.Elements(ctx, "byte-order", func(e nft.Element) error {
		if len(e.Key) > 8 && string(e.Key[4:8]) == "\x00\x00\x00\x01" {
			t.rangeOrder = binary.BigEndian
		}
		return nil
	})
}

// ruleSum is how many rules the program has.
const ruleSum = 1 + (1 + 2 + 2 + 4 + 2) + 4*(3+3*3+2+2) + (4 + 8) + (3 + 2)

// rejectSum is how many more it has that rejects.
const rejectSum = (1 + 2) + 1 + (2 + 8 + 1) + 1

// damaged reports whether the table has other rules than the program's.
func (t *Table) damaged(ctx context.Context) (bool, error) {
	sum := ruleSum
	if t.Reject {
		sum += rejectSum
	}
	return t.table.Damaged(ctx, comment, sum)
}
