package hostport

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
)

//go:embed rules.nft
var rulesText string

// rulesTimeout limits one pass over the rules.
const rulesTimeout = time.Minute

func rulesProgram() *nft.Ruleset {
	return &nft.Ruleset{Source: rulesText, Data: map[string]any{"Priority": numbers.HookHostPorts}}
}

// rules are the kernel's part of host ports on loopback addresses. The table exists while there are such ports.
type rules struct {
	table   *nft.Table
	watch   *nft.Watch
	synced  map[service.Key]netip.AddrPort // the kernel's state after the last sync
	isKnown bool                           // synced is true
}

func newRules() *rules {
	t := nft.New(numbers.TableHostPorts)
	return &rules{table: t, watch: t.Watch()}
}

// sync makes the table lead the wanted ports to their pods.
func (r *rules) sync(ctx context.Context, want map[service.Key]netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, rulesTimeout)
	defer cancel()
	if err := r.write(ctx, want); err != nil {
		r.isKnown = false
		r.watch.Reset()
		r.table.Close()
		return fmt.Errorf("write the rules for host ports on loopback addresses: %w", err)
	}
	return nil
}

func (r *rules) write(ctx context.Context, want map[service.Key]netip.AddrPort) error {
	again := false
	if r.isKnown && maps.Equal(r.synced, want) {
		if len(want) == 0 {
			return nil
		}
		change, _, err := r.watch.Look(ctx)
		if err != nil || change == nft.Nothing {
			return err
		}
		again = change == nft.Rules
	}
	var err error
	if len(want) == 0 {
		r.watch.Reset()
		err = r.table.Delete(ctx)
	} else {
		err = r.watch.Keep(ctx, rulesProgram(), func(context.Context) (bool, error) { return again, nil }, func(ctx context.Context) error {
			ws, err := r.differences(ctx, want)
			if err != nil {
				return err
			}
			return r.table.Commit(ctx, nil, ws)
		})
	}
	r.synced, r.isKnown = maps.Clone(want), err == nil
	return err
}

// differences returns the writes that make the maps hold want.
func (r *rules) differences(ctx context.Context, want map[service.Key]netip.AddrPort) (ws []nft.Write, err error) {
	for set, is4 := range map[string]bool{"loopback4": true, "loopback6": false} {
		wanted := map[string][]byte{}
		for k, to := range want {
			if k.Addr.Addr().Is4() == is4 {
				wanted[string(keyBytes(k))] = dataBytes(to)
			}
		}
		err := r.table.Elements(ctx, set, func(e nft.Element) error {
			if data, ok := wanted[string(e.Key)]; ok && bytes.Equal(data, e.Data) {
				delete(wanted, string(e.Key))
			} else {
				ws = append(ws, nft.Write{Set: set, Key: e.Key, Data: e.Data, Del: true})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for key, data := range wanted {
			ws = append(ws, nft.Write{Set: set, Key: []byte(key), Data: data, Add: true})
		}
	}
	return ws, nil
}

// keyBytes encodes inet_proto . inet_service: each part fills 32 bits.
func keyBytes(k service.Key) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{byte(k.Proto), 0, 0, 0}, k.Addr.Port()), 0, 0)
}

// dataBytes encodes address . inet_service.
func dataBytes(to netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(to.Addr().AsSlice(), to.Port()), 0, 0)
}

// Cleanup removes the table, if it is there.
func Cleanup(ctx context.Context) error {
	if err := nft.New(numbers.TableHostPorts).Delete(ctx); err != nil {
		return fmt.Errorf("remove the rules for host ports: %w", err)
	}
	return nil
}
