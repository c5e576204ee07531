package nftset

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/nft"
)

// maxPrunes is how often a deletion is tried: an entry that expires meanwhile fails the
// transaction.
const maxPrunes = 5

// Prune deletes the clients that are remembered, in a set of each family, and gone. It reads all of them.
func Prune(ctx context.Context, t *nft.Table, set func(is4 bool) string, commit func([]nft.Write) error, gone func(e nft.Element, is4 bool) (bool, error)) (err error) {
	for range maxPrunes {
		var ws []nft.Write
		for _, is4 := range Families {
			name := set(is4)
			if err := t.Elements(ctx, name, func(e nft.Element) error {
				is, err := gone(e, is4)
				if is {
					ws = append(ws, nft.Write{Set: name, Key: e.Key, Del: true})
				}
				return err
			}); err != nil {
				return err
			}
		}
		if err = commit(ws); err == nil {
			return nil
		}
	}
	return fmt.Errorf("delete clients' entries: %w", err)
}
