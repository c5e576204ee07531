package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
)

// Explain implements datapath.Datapath. It reads everything.
func (d *Datapath) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	return d.rules.Explain(ctx, func(s *state) ([]datapath.Object, error) { return s.explain(k), nil })
}

// explain finds the objects of a frontend.
func (s *state) explain(k service.Key) (all []datapath.Object) {
	f := s.frontends[k]
	if f == nil || f.internal == 0 {
		return nil
	}
	is4, key := k.Addr.Addr().Is4(), datapath.FrontKey(k)
	add := func(external bool, v nftset.VerdictID, at netip.AddrPort) {
		verdicts, servers := setsOf(k.Addr.Addr().IsUnspecified(), external)
		if v != 0 {
			all = append(all, datapath.Object{Kind: "map element", Name: "inet " + tableName + " " + verdicts.Name(is4),
				Text: fmt.Sprintf("%s comment %q : %x:%x", key, f.comment, uint32(v>>16), uint32(v&0xffff))})
		}
		virtual := s.servers[serverID{at, k.Proto}]
		if !at.IsValid() || virtual == nil {
			return
		}
		all = append(all,
			datapath.Object{Kind: "map element", Name: "inet " + tableName + " " + servers.Name(is4), Text: fmt.Sprintf("%s : %v", key, at.Addr())},
			datapath.Object{Kind: "virtual server", Name: serverID{at, k.Proto}.String(), Text: virtual.sched})
		for _, a := range slices.SortedFunc(maps.Keys(virtual.reals), netip.AddrPort.Compare) {
			all = append(all, datapath.Object{Kind: "real server", Name: serverID{at, k.Proto}.String(), Text: fmt.Sprintf("%v weight %d", a, virtual.reals[a])})
		}
	}
	add(false, f.internal, f.server)
	add(true, f.external, f.externalServer)
	return all
}
