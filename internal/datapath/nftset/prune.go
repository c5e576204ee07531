package nftset

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// maxPrunes is how many times a deletion is tried. A transaction fails if an entry expires meanwhile.
const maxPrunes = 5

// Prune deletes entries of clients: those for which isGone returns true. It looks at the clients of some lists of
// endpoints, or of all lists if lists is nil. set returns the name of the clients' map for a family. commit writes.
func Prune[N BucketNumber](ctx context.Context, t *nft.Table, set func(is4 bool) string, lists []N,
	commit func([]nft.Write) error, isGone func(e nft.Element, is4 bool) (bool, error)) (err error) {
	for range maxPrunes {
		var ws []nft.Write
		for _, is4 := range Families {
			name := set(is4)
			if err := eachClient(ctx, t, name, lists, func(e nft.Element) error {
				gone, err := isGone(e, is4)
				if gone {
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

// askCost is the cost of a request for one element by its key, in elements of a dump of the whole set.
const askCost = 4

// eachClient calls f for the clients of some lists, or of all lists if lists is nil. If it reads the whole set, it also
// calls f for clients of other lists.
//
// If the set has far more elements than the lists can have, eachClient asks for each bucket of the lists. The set has
// the clients of all namespaces, and the cost of a dump grows with the square of the size: the kernel walks a hash set
// from the start for each page.
func eachClient[N BucketNumber](ctx context.Context, t *nft.Table, set string, lists []N, f func(nft.Element) error) error {
	most := 0 // the number of buckets that the lists can have
	for _, l := range lists {
		most += int(buckets(l.Few()))
	}
	held, known, err := t.Count(ctx, set)
	if err != nil {
		return err
	}
	if lists == nil || !known || held <= askCost*most {
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
