package nftables

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Counters: a frontend that rejects or drops packets has an element with a counter in the set rejects or drops. It
// keeps the element as long as it exists, so that no count is lost when the frontend gets endpoints. Other frontends
// have no counter, and cost nothing. If traffic is counted, every frontend also has an element in the sets connections
// and traffic.
//
//	lb-random-3:  ip daddr . meta l4proto . th dport @connections4
//	count:   ct original ip daddr . meta l4proto . ct original proto-dst @traffic4 accept

// A tally is a set of bits. Each bit says that a frontend has an element with a counter in one of tallySets.
type tally uint8

const (
	tallyRejects tally = 1 << iota
	tallyDrops
	tallyConnections
	tallyTraffic
)

// tallySets has the name of the set of each bit.
var tallySets = [...]nftset.Set{"rejects", "drops", "connections", "traffic"}

// tallySet returns the set of a bit for the frontend k, and the key of k in this set.
func tallySet(bit int, k service.Key) (name string, key []byte) {
	s := tallySets[bit]
	if k.Addr.Addr().IsUnspecified() {
		return nodeportSet(s), append([]byte{protoFamily(k.Addr.Addr().Is4()), 0, 0, 0}, nftset.FrontendKey(k)...)
	}
	return s.Name(k.Addr.Addr().Is4()), nftset.FrontendKey(k)
}

// nodeportSet returns the set of a tally for NodePorts of both families.
func nodeportSet(s nftset.Set) string { return "nodeport-" + string(s) }

func protoFamily(is4 bool) byte {
	if is4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}

// newTallies returns the tallies of a frontend, given its previous tallies.
func (h *frontendState) newTallies(previous tally, traffic bool) tally {
	all := previous & (tallyRejects | tallyDrops)
	if h.entry == 0 {
		return 0
	}
	extra := h.extraOrZero()
	for _, v := range [...]verdictID{h.internalVerdict(), extra.external} {
		switch v {
		case verdictReject:
			all |= tallyRejects
		case verdictDrop:
			all |= tallyDrops
		}
	}
	if extra.sources.Restricted {
		all |= tallyDrops
	}
	if traffic {
		all |= tallyConnections | tallyTraffic
	}
	return all
}

// tallies plans the elements with counters.
func (p *plan) tallies(k service.Key, was, is tally) {
	for bit := range tallySets {
		had, has := was>>bit&1 != 0, is>>bit&1 != 0
		if had == has {
			continue
		}
		name, key := tallySet(bit, k)
		w := nft.Write{Set: name, Key: key, Add: has, Del: had}
		if has {
			p.early = append(p.early, w)
		} else {
			p.late = append(p.late, w)
		}
	}
}

// tallies reads the tallies of all frontends.
func (r *reader) tallies() {
	for bit := range tallySets {
		r.counters(bit, func(k service.Key, _ nft.Element) {
			r.frontend(k).tallies |= 1 << bit
		})
	}
}

// counters calls f for each element in the sets of a tally's bit.
func (r *reader) counters(bit int, f func(service.Key, nft.Element)) {
	for _, fam := range families {
		r.Each(tallySets[bit].Name(fam.is4), func(e nft.Element) error {
			k, err := nftset.ParseFrontendKey(e.Key, fam.is4, false)
			if err == nil {
				f(k, e)
			}
			return err
		})
	}
	r.Each(nodeportSet(tallySets[bit]), func(e nft.Element) error {
		if len(e.Key) < 4 {
			return fmt.Errorf("key has %d bytes", len(e.Key))
		}
		k, err := nftset.ParseFrontendKey(e.Key[4:], e.Key[0] == unix.NFPROTO_IPV4, true)
		if err == nil {
			f(k, e)
		}
		return err
	})
}

// Counts implements datapath.Datapath. Before the first Sync it has the frontends of the last Adopt.
func (d *Datapath) Counts(ctx context.Context) (map[api.PortName]datapath.Count, error) {
	all := map[api.PortName]datapath.Count{}
	held := cmp.Or(d.state, d.adopted)
	if held == nil {
		return all, nil
	}
	r := reader{d.syncer.Reader(ctx), nil}
	for bit := range tallySets {
		r.counters(bit, func(k service.Key, e nft.Element) {
			h := held.frontends[k]
			if h == nil {
				return
			}
			name, err := api.ParsePortName(h.name)
			if err != nil {
				return // another program wrote the name; Check finds the difference
			}
			c := all[name]
			switch tally(1 << bit) {
			case tallyRejects:
				c.Rejects += e.Packets
			case tallyDrops:
				c.Drops += e.Packets
			case tallyConnections:
				c.Connections += e.Packets
			case tallyTraffic:
				c.Packets += e.Packets
				c.Bytes += e.Bytes
			}
			all[name] = c
		})
	}
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("count nftables: %w", err)
	}
	return all, nil
}

// connection returns the rule that counts a connection just before its translation.
func (f family) connection(v verdictID) []expr.Any {
	if v&verdictNodePort == 0 {
		front, _ := f.loadFrontend(false)
		return append(append(f.family(), front...), &expr.Lookup{SourceRegister: firstReg, SetName: "connections" + f.digit()})
	}
	return append(f.family(),
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: firstReg},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstReg + 1},
		&expr.Payload{DestRegister: firstReg + 2, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: firstReg, SetName: nodeportSet("connections")},
	)
}

// digit returns the last character of the family's sets.
func (f family) digit() string { return nftset.Set("").Name(f.is4) }
