package iptables_test

import (
	"context"
	"testing"

	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/testing/conformance"
)

// TestSpoofed: forged SYNs take no more of the map of clients than their Service's share.
func TestSpoofed(t *testing.T) {
	t.Parallel()
	conformance.Spoofed(t, open(iptables.NFT), func() (n int, err error) {
		table := nft.New(numbers.TableIPTables)
		defer table.Close()
		for _, set := range []string{"affinity-buckets4", "affinity-buckets6"} {
			if err := table.Elements(context.Background(), set, func(nft.Element) error { n++; return nil }); err != nil {
				return n, err
			}
		}
		return n, nil
	})
}
