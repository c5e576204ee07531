package nftset

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// maxPrunes is how often a deletion is tried: an entry that expires meanwhile fails the
// transaction.
const maxPrunes = 5

// Prune deletes the clients that are remembered, in a set of each family, and gone: of some lists of
// endpoints or, if that is nil, of all.
func Prune[N BucketNumber](ctx context.Context, t *nft.Table, set func(is4 bool) string, lists []N, commit func([]nft.Write) error, gone func(e nft.Element, is4 bool) (bool, error)) (err error) {
	for range maxPrunes {
		var ws []nft.Write
		for _, is4 := range Families {
			name := set(is4)
			if err := eachClient(ctx, t, name, lists, func(e nft.Element) error {
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

// askShare is how many elements of a set are read faster than one is asked for by its key.
const askShare = 4

// eachClient calls f for the clients of some lists, or of all. It reads the set as a whole, and may call f for
// clients of other lists, unless there are far more clients than the lists can have: to read a hash set costs the kernel the
// square of its size, as it begins anew for each page, and that is all tenants' clients.
func eachClient[N BucketNumber](ctx context.Context, t *nft.Table, set string, lists []N, f func(nft.Element) error) error {
	keys := 0
	for _, l := range lists {
		keys += int(buckets(l.Few()))
	}
	held, known, err := t.Count(ctx, set)
	if err != nil {
		return err
	}
	if lists == nil || !known || held <= askShare*keys {
		return t.Elements(ctx, set, f)
	}
	for _, l := range lists {
		for bucket := range buckets(l.Few()) {
			e, there, err := t.Element(ctx, set, append(Number(uint32(l)), Number(bucket)...))
			if err == nil && there {
				err = f(e)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
