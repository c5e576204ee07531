package egress

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// Reason is the reason of all problems.
const Reason = "EgressUnavailable"

// prefix is the start of all messages.
const prefix = "annotation fairway.net/egress: "

// A Choice says how packets of one pod address leave the cluster.
type Choice struct {
	Node    string // the pod's
	Service api.Name
	Addr    netip.Addr // the source address outside; invalid: the Service has no address of that family yet
	Gateway string     // the node that announces Addr; empty: no node does, or routers lead to Addr by any node, so no packet leaves
}

// A Table has all Choices by pod address. A pod without a Choice leaves with its node's address.
type Table struct {
	Pods map[netip.Addr]Choice
	// Problems are the reasons why a Service's pods cannot leave, or do not leave as the Service says.
	Problems map[api.Name]api.Problem
}

// Input has everything that a Table depends on.
type Input struct {
	Services []*service.Service // only Services with an Egress count
	Pods     []*api.Pod
	// Owner returns the node that announces an address. Empty: no node does, or it is not known.
	Owner func(netip.Addr) string
	// Routed reports whether routers lead to an address by any node. Such an address has no owner.
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
		slices.SortFunc(all, compareServices)
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

// compareServices sorts the Services of a namespace: Services with a selector before Services for all pods, then older before
// newer ones.
func compareServices(a, b *service.Service) int {
	order := func(s *service.Service) int {
		if s.Egress.All {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(order(a), order(b)), cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
}

// serviceOf returns the first Service for a pod. Nil: there is none.
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

// choose returns the Choice of a Service in one family. ok is false if the Service has no such family: its pods then
// leave with their node's address.
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

// add adds a Choice. If two pods have an address, as a terminating pod and its successor do for a moment, and their
// Choices differ, no packet leaves.
func (t *Table) add(pod netip.Addr, c Choice) {
	if was, twice := t.Pods[pod]; twice && (was.Service != c.Service || was.Node != c.Node) {
		c.Node, c.Gateway = "", ""
	}
	t.Pods[pod] = c
}

// check finds the problems of the Services of a namespace.
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
