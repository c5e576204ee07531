package ipvs

import (
	"context"
	"fmt"
	gomaps "maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// Explain implements datapath.Datapath. It reads everything.
func (d *Datapath) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	s, err := d.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("explain ipvs: %w", err)
	}
	f := s.fronts[k]
	if f == nil || f.inside == 0 {
		return nil, nil
	}
	var all []datapath.Object
	is4, key := k.Addr.Addr().Is4(), datapath.FrontKey(k)
	add := func(outside bool, h how, at netip.AddrPort) {
		hows, servers := maps(k.Addr.Addr().IsUnspecified(), outside)
		if h != 0 {
			all = append(all, datapath.Object{Kind: "map element", Name: "inet " + tableName + " " + name(hows, is4),
				Text: fmt.Sprintf("%s comment %q : %x:%x", key, f.comment, uint32(h>>16), uint32(h&0xffff))})
		}
		v := s.servers[id{at, k.Proto}]
		if !at.IsValid() || v == nil {
			return
		}
		all = append(all,
			datapath.Object{Kind: "map element", Name: "inet " + tableName + " " + name(servers, is4), Text: fmt.Sprintf("%s : %v", key, at.Addr())},
			datapath.Object{Kind: "virtual server", Name: id{at, k.Proto}.String(), Text: v.sched})
		for _, a := range slices.SortedFunc(gomaps.Keys(v.reals), netip.AddrPort.Compare) {
			all = append(all, datapath.Object{Kind: "real server", Name: id{at, k.Proto}.String(), Text: fmt.Sprintf("%v weight %d", a, v.reals[a])})
		}
	}
	add(false, f.inside, f.server)
	add(true, f.outside, f.outsideServer)
	return all, nil
}
