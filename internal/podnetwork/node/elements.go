package node

import (
	"context"

	"github.com/fairway-net/fairway/internal/kernel/nft"
)

// elements are the values by key, by set. The sets have no intervals.
type elements map[string]map[string]string

// differing returns the writes that make the sets hold e, in the order of the sets.
func (e elements) differing(ctx context.Context, table *nft.Table, sets ...string) (ws []nft.Write, err error) {
	for _, set := range sets {
		have := map[string]string{}
		err := table.Elements(ctx, set, func(e nft.Element) error {
			have[string(e.Key)] = string(e.Data)
			return nil
		})
		if err != nil {
			return nil, err
		}
		ws = append(ws, replaceElements(set, have, e[set])...)
	}
	return ws, nil
}

// replaceElements returns the writes that make a map hold want instead of have.
func replaceElements(set string, have, want map[string]string) (ws []nft.Write) {
	for key, data := range have {
		if now, ok := want[key]; !ok || now != data {
			ws = append(ws, nft.Write{Set: set, Key: []byte(key), Data: []byte(data), Del: true})
		}
	}
	for key, data := range want {
		if was, ok := have[key]; !ok || was != data {
			ws = append(ws, nft.Write{Set: set, Key: []byte(key), Data: []byte(data), Add: true})
		}
	}
	return ws
}
