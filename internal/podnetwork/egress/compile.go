package egress

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// Reason is that of problems of Services.
const Reason = "EgressUnavailable"

// prefix begins the messages of problems.
const prefix = "annotation fairway.net/egress: "

// A Choice is how packets of one pod's address leave the cluster.
type Choice struct {
	Node    string // the pod's
	Service api.Name
	Addr    netip.Addr // what the world sees; invalid: the Service has none of that family yet
	Gateway string     // the node that announces Addr; empty: nobody does, or routers lead to it too, and nothing leaves
}

// A Table is all Choices, by the addresses of pods. A pod that is not in it leaves as others do.
type Table struct {
	Pods map[netip.Addr]Choice
	// Problems are why a Service's pods cannot leave, or leave otherwise than it says.
	Problems map[api.Name]api.Problem
}

// Input is all that a Table depends on.
type Input struct {
	Services []*service.Service // those with an Egress count
	Pods     []*api.Pod
	// Owner is the node that announces an address; empty: none does, or it is not known.
	Owner func(netip.Addr) string
	// Routed reports whether routers lead to an address by any node; then it has no owner.
	Routed func(netip.Addr) bool
}

// Compile decides.
func Compile(in Input) *Table {
	t := &Table{Pods: map[netip.Addr]Choice{}, Problems: map[api.Name]api.Problem{}}
	byNamespace := map[string][]*service.Service{}
	for _, s := range in.Services {
		if s.Egress != nil {
			byNamespace[s.Namespace] = append(byNamespace[s.Namespace], s)
		}
	}
	for _, all := range byNamespace {
		slices.SortFunc(all, first)
		t.check(all, in)
	}
	for _, p := range in.Pods {
		s := serviceOf(p, byNamespace[p.Name.Namespace])
		if s == nil || p.HostNetwork {
			continue
		}
		for _, a := range p.Addrs {
			if c, ok := choose(s, a.Is4(), in.Owner); ok {
				c.Node = p.Node
				t.add(a, c)
			}
		}
	}
	return t
}

// first sorts the Services of a namespace: those that select pods before those for all, the older
// before the newer.
func first(a, b *service.Service) int {
	order := func(s *service.Service) int {
		if s.Egress.All {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
}

// serviceOf is the first Service that is for a pod; nil: none is.
func serviceOf(p *api.Pod, sorted []*service.Service) *service.Service {
	for _, s := range sorted {
		if s.Egress.All || selects(s.Egress.Selector, p.Labels) {
			return s
		}
	}
	return nil
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return len(selector) > 0
}

// choose is how a family leaves by a Service. A family that the Service does not have leaves as
// that of other pods does.
func choose(s *service.Service, is4 bool, owner func(netip.Addr) string) (c Choice, ok bool) {
	ofFamily := func(a netip.Addr) bool { return a.Is4() == is4 }
	if !slices.ContainsFunc(s.ClusterIPs, ofFamily) {
		return c, false
	}
	c.Service = s.Name
	if i := slices.IndexFunc(s.BalancerIPs, ofFamily); i >= 0 {
		c.Addr = s.BalancerIPs[i]
		c.Gateway = owner(c.Addr)
	}
	return c, true
}

// add takes a Choice. Where two pods have an address, as one that ends and the next one for a moment, neither
// leaves with what is the other's.
func (t *Table) add(pod netip.Addr, c Choice) {
	if was, twice := t.Pods[pod]; twice && (was.Service != c.Service || was.Node != c.Node) {
		c.Node, c.Gateway = "", ""
	}
	t.Pods[pod] = c
}

// check finds what is wrong with the Services of a namespace.
func (t *Table) check(sorted []*service.Service, in Input) {
	var all *service.Service
	for _, s := range sorted {
		if s.Egress.All {
			if all != nil {
				t.problem(s, "the older Service %s is for all pods of the namespace", all.Name.Name)
				continue
			}
			all = s
		}
		for _, ip := range s.ClusterIPs {
			switch c, _ := choose(s, ip.Is4(), in.Owner); {
			case !c.Addr.IsValid():
				t.problem(s, "the Service has no %s address yet: its pods reach nothing outside of the cluster by %s", family(ip), family(ip))
			case in.Routed(c.Addr):
				t.problem(s, "%v is announced by BGP too, and answers would come to any node: its pods reach nothing outside of the cluster by %s [let no BGPAdvertisement be for its pool and Service, but an L2Advertisement]", c.Addr, family(ip))
			case c.Gateway == "":
				t.problem(s, "no node announces %v by ARP or neighbour discovery: its pods reach nothing outside of the cluster by %s [an L2Advertisement for its pool, and a ready endpoint of the Service: without one no node announces it]", c.Addr, family(ip))
			}
		}
	}
}

func (t *Table) problem(s *service.Service, format string, args ...any) {
	if _, has := t.Problems[s.Name]; !has {
		t.Problems[s.Name] = api.Problem{Reason: Reason, Message: fmt.Sprintf(prefix+format, args...)}
	}
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
