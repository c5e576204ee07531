package nftables

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// firstDenial is the priority of a denied packet of direction 0 in the program. The next one is that of direction 1.
const firstDenial = 3

// Counts are the packets denied since the rules were loaded, by direction.
type Counts [2]uint64

// Denied returns how many packets were denied.
func (t *Table) Denied(ctx context.Context) (all Counts, err error) {
	set := "denials"
	if t.Reject {
		set = "rejections"
	}
	err = t.table.Elements(ctx, set, func(e nft.Element) error {
		if len(e.Key) == 4 {
			if d := binary.NativeEndian.Uint32(e.Key) - firstDenial; d < uint32(len(all)) {
				all[d] = e.Packets
			}
		}
		return nil
	})
	if err != nil {
		return all, fmt.Errorf("count denied packets: %w", err)
	}
	return all, nil
}

// DeniedLately returns first packets that a direction of this node's pods denied in the last half minute. It knows only
// protocols with ports, and at most 1,024 packets of each family.
func (t *Table) DeniedLately(ctx context.Context, d networkpolicy.Direction) (all []networkpolicy.Packet, err error) {
	for _, f := range suffixes {
		err := t.table.Elements(ctx, "denied-"+d.String()+f, func(e nft.Element) error {
			n := 4
			if f == "6" {
				n = 16
			}
			if len(e.Key) < 2*n+8 {
				return nil
			}
			src, _ := netip.AddrFromSlice(e.Key[:n])
			dst, _ := netip.AddrFromSlice(e.Key[n : 2*n])
			rest := e.Key[2*n:]
			all = append(all, networkpolicy.Packet{Src: src, Dst: dst, Proto: api.Proto(rest[0]), Port: binary.BigEndian.Uint16(rest[4:])})
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read what was denied: %w", err)
		}
	}
	return all, nil
}
