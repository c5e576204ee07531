package nftset

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// A Rename is a set that had another name in a former release. Its keys and data mean the
// same, but for keys that have another form: Key returns the present one.
type Rename struct {
	Former, Name string
	Key          func(former []byte) []byte // nil: it is the same
}

// RenamedSets returns the renames of sets of both families.
func RenamedSets(former map[Set]Set) (all []Rename) {
	for was, is := range former {
		for _, is4 := range Families {
			all = append(all, Rename{Former: was.Name(is4), Name: is.Name(is4)})
		}
	}
	return all
}

// maxMigrations is how often the copy of one set is tried: an element that another
// program adds or removes meanwhile fails the transaction.
const maxMigrations = 5

// Migrate copies the elements of former sets to the sets of the program, which must be
// declared. Elements that a set has already stay unchanged. The rules of the former release
// use their own sets until the rules are switched over. Entries with a timeout keep the
// rest of their time.
func Migrate(ctx context.Context, t *nft.Table, renames []Rename) error {
	for _, r := range renames {
		var err error
		for range maxMigrations {
			if err = migrate(ctx, t, r); err == nil {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("copy %s to %s: %w", r.Former, r.Name, err)
		}
	}
	return nil
}

func migrate(ctx context.Context, t *nft.Table, r Rename) error {
	var former []nft.Element
	err := t.Elements(ctx, r.Former, func(e nft.Element) error {
		former = append(former, e)
		return nil
	})
	if errors.Is(err, os.ErrNotExist) || err == nil && len(former) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	there := map[string]bool{}
	if err := t.Elements(ctx, r.Name, func(e nft.Element) error {
		there[string(e.Key)] = true
		return nil
	}); err != nil {
		return err
	}
	var ws []nft.Write
	for _, e := range former {
		if r.Key != nil {
			e.Key = r.Key(e.Key)
		}
		if !there[string(e.Key)] {
			there[string(e.Key)] = true
			ws = append(ws, nft.Write{Set: r.Name, Key: e.Key, Last: e.Last, Data: e.Data, Comment: e.Comment, Timeout: e.Expires, Add: true})
		}
	}
	return t.Commit(ctx, nil, ws)
}
