package bgp

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

//go:embed aggregates.nft
var aggregatesText string

// aggregatesTimeout limits one pass over the rules.
const aggregatesTimeout = 30 * time.Second

// aggregates keeps the rules that drop packets to unassigned addresses of the announced aggregates. A blackhole route
// would also catch this node's own packets to a Service, because the kernel routes them before it translates them. The
// table exists while there are aggregates, and outlives the process: routers may lead packets here until the next start.
type aggregates struct {
	table   *nft.Table
	watch   *nft.Watch
	written []netip.Prefix
	known   bool // written is true
}

func newAggregates() *aggregates {
	t := nft.New(numbers.TableAggregates)
	return &aggregates{table: t, watch: t.Watch()}
}

// aggregatesOf returns the announced prefixes that have more than one address of a load balancer, sorted.
func aggregatesOf(sessions []announce.Session) (all []netip.Prefix) {
	for _, s := range sessions {
		for _, r := range s.Routes {
			if len(r.Services) > 0 && !r.Prefix.IsSingleIP() {
				all = append(all, r.Prefix.Masked())
			}
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// sync makes the rules drop packets to unassigned addresses of want. It also finds rules that another program changed.
func (a *aggregates) sync(ctx context.Context, want []netip.Prefix) error {
	ctx, cancel := context.WithTimeout(ctx, aggregatesTimeout)
	defer cancel()
	err := a.write(ctx, want)
	if a.written, a.known = want, err == nil; err != nil {
		a.watch.Reset()
		a.table.Close()
		return fmt.Errorf("write the rules for aggregates: %w", err)
	}
	return nil
}

func (a *aggregates) write(ctx context.Context, want []netip.Prefix) error {
	again := false
	if a.known && slices.Equal(a.written, want) {
		if len(want) == 0 {
			return nil
		}
		change, _, err := a.watch.Look(ctx)
		if err != nil || change == nft.Nothing {
			return err
		}
		again = change == nft.Rules
	}
	if len(want) == 0 {
		a.watch.Reset()
		return a.table.Delete(ctx)
	}
	rs := &nft.Ruleset{Source: aggregatesText}
	return a.watch.Keep(ctx, rs, func(context.Context) (bool, error) { return again, nil }, func(ctx context.Context) error {
		var writes []nft.Write
		for set, is4 := range map[string]bool{"aggregates4": true, "aggregates6": false} {
			have, err := a.table.Prefixes(ctx, set)
			if err != nil {
				return err
			}
			writes = append(writes, nft.ReplacePrefixes(set, is4, have, want)...)
		}
		return a.table.Commit(ctx, nil, writes)
	})
}

// Cleanup removes the speaker's rules for aggregates, if they are there.
func Cleanup(ctx context.Context) error {
	if err := nft.New(numbers.TableAggregates).Delete(ctx); err != nil {
		return fmt.Errorf("remove the rules for aggregates: %w", err)
	}
	return nil
}
