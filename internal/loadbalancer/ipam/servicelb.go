package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// The labels of K3s' ServiceLB. They select the nodes that take part, and the nodes of a Service.
const (
	labelEnable = "svccontroller.k3s.cattle.io/enablelb"
	labelPool   = "svccontroller.k3s.cattle.io/lbpool"
)

// A Host is a node whose own addresses Services may have.
type Host struct {
	Name               string
	Labels             map[string]string
	Internal, External []netip.Addr
	// Usable means that the node is ready, and load balancers may use it.
	Usable bool
}

// A PortRange has ports that no Service may have on nodes, because programs of the node listen there.
type PortRange struct{ First, Last uint16 }

// Taken reports whether a port is in one of the ranges.
func Taken(ranges []PortRange, port uint16) bool {
	return slices.ContainsFunc(ranges, func(t PortRange) bool { return t.First <= port && port <= t.Last })
}

// A HostRequest is a Service that must have nodes' addresses.
type HostRequest struct {
	*Service
	// Nodes are the nodes with an endpoint that serves, under externalTrafficPolicy Local; nil means all.
	Nodes map[string]bool
	// Leaving are the Nodes whose endpoints all terminate.
	Leaving map[string]bool
	// Held are the ports in the status, which the Service keeps.
	Held []Port
}

// incumbent reports whether a Service has all its ports already.
func (r HostRequest) incumbent() bool {
	return !slices.ContainsFunc(r.Ports, func(p Port) bool { return !slices.Contains(r.Held, p) })
}

// ShareHosts gives nodes' addresses to Services by their ports. Services that have their ports come first, then the oldest.
// A Service gets a node only with all of its ports. ShareHosts has no memory: the same objects give the same Decisions, one
// for each request, sorted by name. Each call returns all Events again.
func ShareHosts(requests []HostRequest, hosts []Host, taken []PortRange) []Decision {
	selected := enabled(hosts)
	used := map[string]map[Port]api.Name{} // by node
	ordered := slices.Clone(requests)
	slices.SortFunc(ordered, func(a, b HostRequest) int {
		if a.incumbent() != b.incumbent() {
			if a.incumbent() {
				return -1
			}
			return 1
		}
		return compareAge(a.Service, b.Service)
	})
	var out []Decision
	for _, r := range ordered {
		if !r.Wanted {
			continue
		}
		d := Decision{Name: r.Name}
		if why := r.allocate(selected, used, taken, &d); why != "" && len(d.Addrs) == 0 {
			d.Events = []Event{{ReasonFailed, fmt.Sprintf("Failed to allocate IP for %q: %s", r.Name, why), true}}
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Decision) int { return a.Name.Compare(b.Name) })
	return out
}

// enabled returns the nodes that take part: all, or only the labelled ones if any node has the label. Without such a label
// it ignores pools, as K3s does.
func enabled(hosts []Host) (out []Host) {
	labelled := slices.ContainsFunc(hosts, func(h Host) bool { _, ok := h.Labels[labelEnable]; return ok })
	for _, h := range hosts {
		switch {
		case !h.Usable || labelled && h.Labels[labelEnable] != "true":
			continue
		case !labelled:
			h.Labels = nil
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b Host) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// allocate takes the ports of a Service on all nodes where they are free. why is a reason for a node where they are not.
func (r HostRequest) allocate(hosts []Host, used map[string]map[Port]api.Name, taken []PortRange, d *Decision) (why string) {
	if r.Refused != "" {
		return r.Refused
	}
	for _, p := range r.Ports {
		if Taken(taken, p.Port) {
			return fmt.Sprintf("port %d/%v is a node's own [choose another port]", p.Port, p.Proto)
		}
	}
	why = "no node takes part"
	if r.Nodes != nil && len(hosts) > 0 {
		why = "no node that takes part has an endpoint that serves (externalTrafficPolicy: Local)"
	}
	pool, pooled := r.Labels[labelPool]
	var nodes []Host
	for _, h := range hosts {
		if r.Nodes != nil && !r.Nodes[h.Name] || pooled && h.Labels != nil && h.Labels[labelPool] != pool {
			continue
		}
		if p, other, ok := conflictAt(used[h.Name], r.Ports); ok {
			why = fmt.Sprintf("port %d/%v of node %s is in use by Service %v", p.Port, p.Proto, h.Name, other)
			continue
		}
		nodes = append(nodes, h)
	}
	external := slices.ContainsFunc(nodes, func(h Host) bool { return len(h.External) > 0 })
	stay, leave := r.split(nodes)
	d.Addrs, d.Leaving = r.addrsOf(stay, external), r.addrsOf(leave, external)
	if len(d.Addrs) == 0 {
		d.Addrs, d.Leaving = d.Leaving, nil
	}
	for _, h := range nodes {
		if used[h.Name] == nil {
			used[h.Name] = map[Port]api.Name{}
		}
		for _, p := range r.Ports {
			used[h.Name][p] = r.Name
		}
	}
	return why
}

func conflictAt(used map[Port]api.Name, ports []Port) (Port, api.Name, bool) {
	for _, p := range ports {
		if other, ok := used[p]; ok {
			return p, other, true
		}
	}
	return Port{}, api.Name{}, false
}

// split returns the nodes that new clients should use (stay), and the nodes that still serve but should get no new ones.
func (r HostRequest) split(nodes []Host) (stay, leave []Host) {
	for _, h := range nodes {
		if r.Leaving[h.Name] {
			leave = append(leave, h)
		} else {
			stay = append(stay, h)
		}
	}
	return stay, leave
}

// addrsOf returns the nodes' external or internal addresses in the Service's families, the primary family's first.
func (r HostRequest) addrsOf(hosts []Host, external bool) []netip.Addr {
	var out []netip.Addr
	for _, h := range hosts {
		all := h.Internal
		if external {
			all = h.External
		}
		for _, a := range all {
			if slices.Contains(r.Families, FamilyOf(a)) {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(slices.Index(r.Families, FamilyOf(a)), slices.Index(r.Families, FamilyOf(b))), a.Compare(b))
	})
	return slices.Compact(out)
}
