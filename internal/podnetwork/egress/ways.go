package egress

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Way says how the pods of one Service leave the cluster, in one family of addresses.
type Way struct {
	Service string `json:"service"`
	Pods    string `json:"pods"`              // which they are
	Address string `json:"address,omitempty"` // the source address outside; empty: none yet
	Node    string `json:"node,omitempty"`    // the node by which they leave; empty: they do not leave
	// Here and Everywhere count the pod addresses of this Way: on one node, and on all nodes.
	Here       int    `json:"here"`
	Everywhere int    `json:"everywhere"`
	Problem    string `json:"problem,omitempty"` // of the Service
}

// Ways returns the Ways of all Services with an egress, sorted. node is the node of Here.
func (t *Table) Ways(in Input, node string) (all []Way) {
	type key struct {
		service api.Name
		is4     bool
	}
	here, everywhere := map[key]int{}, map[key]int{}
	for a, c := range t.Pods {
		k := key{c.Service, a.Is4()}
		if everywhere[k]++; c.Node == node {
			here[k]++
		}
	}
	ask := slices.DeleteFunc(slices.Clone(in.Services), func(s *service.Service) bool { return s.Egress == nil }) // few of all
	slices.SortFunc(ask, func(a, b *service.Service) int { return a.Name.Compare(b.Name) })
	for _, s := range ask {
		for _, is4 := range []bool{true, false} {
			c, has := choose(s, is4, in.Owner)
			if !has {
				continue
			}
			k := key{s.Name, is4}
			w := Way{Service: s.Name.String(), Pods: podsText(s), Node: c.Gateway, Here: here[k], Everywhere: everywhere[k]}
			if c.Addr.IsValid() {
				w.Address = c.Addr.String()
			}
			w.Problem = strings.TrimPrefix(t.Problems[s.Name].Message, prefix)
			all = append(all, w)
		}
	}
	return all
}

// podsText describes the pods of a Service.
func podsText(s *service.Service) string {
	if s.Egress.All {
		return "the other pods of namespace " + s.Namespace
	}
	var all []string
	for _, k := range slices.Sorted(maps.Keys(s.Egress.Selector)) {
		all = append(all, k+"="+s.Egress.Selector[k])
	}
	return "pods with " + cmp.Or(strings.Join(all, ","), "no label at all: none")
}

// Of returns the Ways of one Service.
func Of(all []Way, name api.Name) (of []Way) {
	for _, w := range all {
		if w.Service == name.String() {
			of = append(of, w)
		}
	}
	return of
}

// ByOwners returns an Input with the owners that a speaker reports. routers is the speaker's word for an address to
// which routers lead by any node.
func ByOwners(services []*service.Service, by map[netip.Addr]string, routers string) Input {
	routed := func(a netip.Addr) bool { return by[a] == routers }
	return Input{Services: services, Routed: routed, Owner: func(a netip.Addr) string {
		if routed(a) {
			return ""
		}
		return by[a]
	}}
}
