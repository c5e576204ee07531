package announce

import (
	"encoding/binary"
	"slices"

	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

// carriers returns the nodes that may have connections from routers to an address of these pools and Services. They
// announce the address, or still serve it after the announcement ended. Nodes that leave come first.
func (in Input) carriers(pools []*ipam.Pool, services []*Service, sets map[string][]string) []string {
	var which []byte
	var ads []*BGPAdvertisement
	for i, ad := range in.Routed {
		if ad.isFor(pools, services) {
			ads, which = append(ads, ad), binary.AppendUvarint(which, uint64(i))
		}
	}
	if len(ads) == 0 {
		return nil
	}
	all, known := sets[string(which)]
	if !known {
		all = in.announcers(ads)
		sets[string(which)] = all
	}
	for _, s := range services {
		if s.Local {
			all = locals(all, in.Endpoints(s.Name))
		}
	}
	return all
}

// announcers returns the nodes of advertisements by name. Nodes that load balancers must not use any more come first.
func (in Input) announcers(ads []*BGPAdvertisement) []string {
	var leaving, rest []string
	for _, n := range in.Nodes {
		if !slices.ContainsFunc(ads, func(ad *BGPAdvertisement) bool { return n.matches(ad.NodeSelectors) }) {
			continue
		}
		if n.Excluded != "" {
			leaving = append(leaving, n.Name)
		} else {
			rest = append(rest, n.Name)
		}
	}
	return append(leaving, rest...)
}

// locals returns the nodes with an endpoint that serves. Nodes whose endpoints all terminate come first.
func locals(all []string, e Endpoints) []string {
	var leaving, ready []string
	for _, n := range all {
		switch {
		case e.Ready[n]:
			ready = append(ready, n)
		case e.Serving[n]:
			leaving = append(leaving, n)
		}
	}
	return append(leaving, ready...)
}
