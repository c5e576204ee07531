package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
)

// Explain implements nftset.State.
func (s *state) Explain(k service.Key) (all []datapath.Object, _ error) {
	f := s.frontends[k]
	if f == nil || f.internal == 0 {
		return nil, nil
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
	return all, nil
}
