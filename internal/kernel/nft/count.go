package nft

import (
	"context"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// nftaSetCount is NFTA_SET_COUNT, which x/sys/unix lacks. Kernels before 6.16 do not send it.
const nftaSetCount = 20

// Count returns the number of elements in a set, as the kernel counts them. Expired elements count until the kernel
// removes them. known is false if the kernel does not report the number.
func (t *Table) Count(ctx context.Context, set string) (n int, known bool, err error) {
	attrs := netlink.AppendText(netlink.AppendText(nil, unix.NFTA_SET_TABLE, t.name), unix.NFTA_SET_NAME, set)
	_, err = t.reader.ask(ctx, Inet, unix.NFT_MSG_GETSET, 0, attrs, func(b []byte) error {
		return netlink.Attributes(b, func(typ uint16, b []byte) error {
			if typ == nftaSetCount && len(b) == 4 {
				n, known = int(binary.BigEndian.Uint32(b)), true
			}
			return nil
		})
	})
	if err != nil {
		return 0, false, fmt.Errorf("count %s: %w", set, err)
	}
	return n, known, nil
}

// Counts returns the number of elements in each set and map of the table. An interval counts once. Sets with timeouts
// are left out. If the kernel does not report a number, Counts reads the elements.
func (t *Table) Counts(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	const unknown = -1
	attrs := netlink.AppendText(nil, unix.NFTA_SET_TABLE, t.name)
	err := t.reader.dump(ctx, Inet, unix.NFT_MSG_GETSET, attrs, func() { clear(counts) }, func(b []byte) error {
		s, err := parseSet(b)
		if err != nil || s.anonymous || s.shape.flags&unix.NFT_SET_TIMEOUT != 0 {
			return err
		}
		counts[s.name] = unknown
		if s.shape.flags&(unix.NFT_SET_INTERVAL|nftSetConcat) == unix.NFT_SET_INTERVAL {
			return nil // the kernel counts both ends of an interval
		}
		return netlink.Attributes(b, func(typ uint16, b []byte) error {
			if typ == nftaSetCount && len(b) == 4 {
				counts[s.name] = int(binary.BigEndian.Uint32(b))
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("count elements: %w", err)
	}
	for name, n := range counts {
		if n != unknown {
			continue
		}
		n = 0
		if err := t.Elements(ctx, name, func(e Element) error {
			if !e.End {
				n++
			}
			return nil
		}); err != nil {
			return nil, err
		}
		counts[name] = n
	}
	return counts, nil
}
