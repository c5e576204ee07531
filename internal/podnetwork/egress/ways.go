package egress

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Way is how the pods of one Service leave the cluster, in one family of addresses.
type Way struct {
	Service string `json:"service"`
	Pods    string `json:"pods"`              // which they are
	Address string `json:"address,omitempty"` // what the world sees; empty: none yet
	Node    string `json:"node,omitempty"`    // by which they leave; empty: they do not
	// Here and Everywhere are how many of their addresses leave so: those of one node, and all.
	Here       int    `json:"here"`
	Everywhere int    `json:"everywhere"`
	Problem    string `json:"problem,omitempty"` // of the Service
}

// Ways are those of all Services that ask for it, sorted, as a node has them.
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
			w := Way{Service: s.Name.String(), Pods: whose(s), Node: c.Gateway, Here: here[k], Everywhere: everywhere[k]}
			if c.Addr.IsValid() {
				w.Address = c.Addr.String()
			}
			w.Problem = strings.TrimPrefix(t.Problems[s.Name].Message, prefix)
			all = append(all, w)
		}
	}
	return all
}

// whose says in words which pods leave by a Service.
func whose(s *service.Service) string {
	if s.Egress.All {
		return "the other pods of namespace " + s.Namespace
	}
	var all []string
	for _, k := range slices.Sorted(maps.Keys(s.Egress.Selector)) {
		all = append(all, k+"="+s.Egress.Selector[k])
	}
	return "pods with " + cmp.Or(strings.Join(all, ","), "no label at all: none")
}

// most is how many Ways a table shows.
const most = 50

// WriteTable writes them for people, or nothing.
func WriteTable(w io.Writer, all []Way) error {
	if len(all) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "EGRESS OF\tWHO\tADDRESS\tBY NODE\tPODS HERE\tALL\tPROBLEM")
	for _, x := range all[:min(len(all), most)] {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", x.Service, x.Pods, cmp.Or(x.Address, "-"), cmp.Or(x.Node, "-"), x.Here, x.Everywhere, cmp.Or(x.Problem, "-"))
	}
	if len(all) > most {
		fmt.Fprintf(tw, "and %d more\t\t\t\t\t\t\n", len(all)-most)
	}
	return tw.Flush()
}

// Of are the Ways of one Service.
func Of(all []Way, name api.Name) (of []Way) {
	for _, w := range all {
		if w.Service == name.String() {
			of = append(of, w)
		}
	}
	return of
}

// ByOwners is an Input with what a speaker says of who announces the addresses. routers is in place of a
// node where routers lead to one by any.
func ByOwners(services []*service.Service, by map[netip.Addr]string, routers string) Input {
	routed := func(a netip.Addr) bool { return by[a] == routers }
	return Input{Services: services, Routed: routed, Owner: func(a netip.Addr) string {
		if routed(a) {
			return ""
		}
		return by[a]
	}}
}
