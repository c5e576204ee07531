package peerguard

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

//go:embed rules.nft
var rulesText string

const (
	// timeout limits one pass over the rules.
	timeout = 30 * time.Second
	// resync is the time between two looks at the rules without a change, because other programs write rules too. It is
	// also the pause after an error.
	resync = 10 * time.Second
)

func program() *nft.Ruleset {
	return &nft.Ruleset{Source: rulesText, Data: map[string]any{"Priority": numbers.HookPeers}}
}

// keys are the elements by set.
type keys map[string]map[string]bool

// A Guard keeps the table in the network namespace of the goroutine that calls Run.
type Guard struct {
	log     *slog.Logger
	table   *nft.Table
	watch   *nft.Watch
	changed chan struct{}

	mu   sync.Mutex
	want keys // nil: not known yet, so the table stays as it is

	have keys // the kernel's state after the last pass; nil: not known
}

// New returns a Guard. It does not access the kernel.
func New(log *slog.Logger) *Guard {
	t := nft.New(numbers.TablePeers)
	return &Guard{log: log, table: t, watch: t.Watch(), changed: make(chan struct{}, 1)}
}

// Set sets the routers of the node: addresses and BGP ports. Any goroutine may call it.
func (g *Guard) Set(routers []netip.AddrPort) {
	want := elements(routers)
	g.mu.Lock()
	g.want = want
	g.mu.Unlock()
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// elements returns the elements for some routers. A router's BFD ports are fixed.
func elements(routers []netip.AddrPort) keys {
	all := keys{"peers4": {}, "peers6": {}}
	for _, r := range routers {
		set := "peers6"
		if r.Addr().Is4() {
			set = "peers4"
		}
		all[set][key(r.Addr(), unix.IPPROTO_TCP, r.Port())] = true
		all[set][key(r.Addr(), unix.IPPROTO_UDP, numbers.PortBFD)] = true
		all[set][key(r.Addr(), unix.IPPROTO_UDP, numbers.PortBFDMultiHop)] = true
	}
	return all
}

// key encodes address . inet_proto . inet_service: each part fills 32 bits.
func key(a netip.Addr, proto byte, port uint16) string {
	b := append(a.WithZone("").AsSlice(), proto, 0, 0, 0)
	return string(append(binary.BigEndian.AppendUint16(b, port), 0, 0))
}

// Run keeps the table until ctx ends. The table stays.
func (g *Guard) Run(ctx context.Context) error {
	defer g.forget()
	timer := time.NewTimer(resync)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.changed:
		case <-timer.C:
		}
		if err := g.sync(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("pods may speak to routers with this node's address [a password in each BGPPeer]", "err", err, "again", resync)
		}
		timer.Reset(resync)
	}
}

func (g *Guard) sync(ctx context.Context) error {
	g.mu.Lock()
	want := g.want
	g.mu.Unlock()
	if want == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := g.write(ctx, want); err != nil {
		g.forget()
		return fmt.Errorf("write table %s: %w", numbers.TablePeers, err)
	}
	g.have = want
	return nil
}

func (g *Guard) write(ctx context.Context, want keys) error {
	none := len(want["peers4"])+len(want["peers6"]) == 0
	again := false
	if g.have != nil && equal(g.have, want) {
		if none {
			return nil
		}
		change, _, err := g.watch.Look(ctx)
		if err != nil || change == nft.Nothing {
			return err
		}
		again = change == nft.Rules
	}
	if none {
		g.watch.Reset()
		return g.table.Delete(ctx)
	}
	return g.watch.Keep(ctx, program(), func(context.Context) (bool, error) { return again, nil }, func(ctx context.Context) error {
		return g.fill(ctx, want)
	})
}

func equal(a, b keys) bool {
	return maps.Equal(a["peers4"], b["peers4"]) && maps.Equal(a["peers6"], b["peers6"])
}

// fill writes the elements that differ.
func (g *Guard) fill(ctx context.Context, want keys) error {
	var ws []nft.Write
	for set, wanted := range want {
		have := map[string]bool{}
		err := g.table.Elements(ctx, set, func(e nft.Element) error {
			if have[string(e.Key)] = true; !wanted[string(e.Key)] {
				ws = append(ws, nft.Write{Set: set, Key: e.Key, Del: true})
			}
			return nil
		})
		if err != nil {
			return err
		}
		for k := range wanted {
			if !have[k] {
				ws = append(ws, nft.Write{Set: set, Key: []byte(k), Add: true})
			}
		}
	}
	return g.table.Commit(ctx, nil, ws)
}

// forget makes the next pass read the kernel.
func (g *Guard) forget() {
	g.have = nil
	g.watch.Reset()
	g.table.Close()
}

// Remove removes the table, if it is there.
func Remove(ctx context.Context) error {
	if err := nft.New(numbers.TablePeers).Delete(ctx); err != nil {
		return fmt.Errorf("remove table %s: %w", numbers.TablePeers, err)
	}
	return nil
}
