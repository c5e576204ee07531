package peerguard

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"log/slog"
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

// keys are the elements by set. The values are empty.
type keys = map[string]map[string]string

// A Guard keeps the table in the network namespace of the goroutine that calls Run.
type Guard struct {
	log     *slog.Logger
	table   *nft.Small[keys]
	changed chan struct{}

	mu   sync.Mutex
	want keys // nil: not known yet, so the table stays as it is
}

// New returns a Guard. It does not access the kernel.
func New(log *slog.Logger) *Guard {
	return &Guard{log: log, table: nft.NewSmall[keys](numbers.TablePeers), changed: make(chan struct{}, 1)}
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
		all[set][key(r.Addr(), unix.IPPROTO_TCP, r.Port())] = ""
		all[set][key(r.Addr(), unix.IPPROTO_UDP, numbers.PortBFD)] = ""
		all[set][key(r.Addr(), unix.IPPROTO_UDP, numbers.PortBFDMultiHop)] = ""
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
	defer g.table.Close()
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
	err := g.table.Sync(ctx, program(), want, len(want["peers4"])+len(want["peers6"]), func(ctx context.Context, t *nft.Table) ([]nft.Write, error) {
		return t.Differences(ctx, want, "peers4", "peers6")
	})
	if err != nil {
		return fmt.Errorf("write table %s: %w", numbers.TablePeers, err)
	}
	return nil
}

// Remove removes the table, if it is there.
func Remove(ctx context.Context) error {
	if err := nft.New(numbers.TablePeers).Delete(ctx); err != nil {
		return fmt.Errorf("remove table %s: %w", numbers.TablePeers, err)
	}
	return nil
}
