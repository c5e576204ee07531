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
type aggregates struct{ *nft.Small[[]netip.Prefix] }

func newAggregates() *aggregates {
	return &aggregates{nft.NewSmall[[]netip.Prefix](numbers.TableAggregates)}
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
	err := a.Sync(ctx, &nft.Ruleset{Source: aggregatesText}, want, len(want), func(ctx context.Context, t *nft.Table) (writes []nft.Write, err error) {
		for set, is4 := range map[string]bool{"aggregates4": true, "aggregates6": false} {
			have, err := t.Prefixes(ctx, set)
			if err != nil {
				return nil, err
			}
			writes = append(writes, nft.ReplacePrefixes(set, is4, have, want)...)
		}
		return writes, nil
	})
	if err != nil {
		return fmt.Errorf("write the rules for aggregates: %w", err)
	}
	return nil
}

// Cleanup removes the speaker's rules for aggregates, if they are there.
func Cleanup(ctx context.Context) error {
	if err := nft.New(numbers.TableAggregates).Delete(ctx); err != nil {
		return fmt.Errorf("remove the rules for aggregates: %w", err)
	}
	return nil
}
