package flow

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// Stale returns the flows that the change from one table to another made wrong, sorted.
//
// A UDP flow is wrong if
//   - its endpoint is neither ready nor serving,
//   - its frontend was removed, or
//   - it was not translated so far, and the frontend now gets its first endpoints.
//
// A TCP connection is wrong if
//   - its endpoint no longer keeps connections under the Service's termination policy (Frontend.Termination). A removed
//     frontend does not matter as long as the Service has the endpoint at another frontend.
//   - it is in state SYN_SENT, and the endpoint no longer gets new connections. The endpoint's node may be dead, and
//     the client would send its SYN there for two minutes.
//   - it is in state SYN_SENT and untranslated, and its external address now gets its first endpoints. Conntrack would
//     leave the client's next SYN, also of a later connection from the same port, untranslated for two minutes. (At a
//     ClusterIP or NodePort no entry stays: the node drops or answers the SYN.)
//
// Stale costs as much as service.Diff.
func Stale(from, to *service.Table) []Flow {
	var flows []Flow
	for c := range service.Touched(from, to) {
		switch c.Key().Proto {
		case api.UDP:
			flows = staleUDP(flows, c)
		case api.TCP:
			flows = staleTCP(flows, c, from, to)
		}
	}
	flows = append(flows, moved(from, to)...)
	slices.SortFunc(flows, func(a, b Flow) int {
		return cmp.Or(a.Frontend.Compare(b.Frontend), cmp.Compare(a.Proto, b.Proto), a.Endpoint.Compare(b.Endpoint))
	})
	return flows
}

func staleUDP(flows []Flow, c service.Change) []Flow {
	f := Flow{Proto: api.UDP, Frontend: c.Key().Addr, Namespace: owner(c).Namespace}
	if !c.Old.KeepsFlows() && c.New.KeepsFlows() {
		flows = append(flows, f)
	}
	for _, a := range lost(c) {
		f.Endpoint = a
		flows = append(flows, f)
	}
	return flows
}

func staleTCP(flows []Flow, c service.Change, from, to *service.Table) []Flow {
	if c.New != nil && c.New.OwnsAddress() && !c.Old.KeepsFlows() && c.New.KeepsFlows() {
		flows = append(flows, Flow{Proto: api.TCP, Frontend: c.Key().Addr, OnlyUnanswered: true, Namespace: owner(c).Namespace})
	}
	policy, kept := termination(c, to)
	var ended []netip.AddrPort
	if policy != service.TerminateNever {
		ended = slices.DeleteFunc(lost(c), kept)
	}
	for _, a := range unrouted(c) {
		if _, ends := slices.BinarySearchFunc(ended, a, netip.AddrPort.Compare); !ends {
			flows = append(flows, Flow{Proto: api.TCP, Frontend: c.Key().Addr, Endpoint: a, OnlyUnanswered: true, Namespace: owner(c).Namespace})
		}
	}
	if len(ended) == 0 {
		return flows
	}
	pods := from.Entry(owner(c)).Pods(ended)
	allTerminating := !slices.ContainsFunc(pods, func(p service.PodRef) bool { return !p.Terminating || p.Name == "" })
	// A connection under policy gone ends only if the pod is gone. A pod that is being deleted stays in the slices until
	// its containers have ended. So if all pods that left were being deleted, they are gone. If one was not, labels or
	// selectors may have changed, and the Reconciler must ask about each. An endpoint without a pod may be alive as well.
	confirmed := policy != service.TerminateGone || allTerminating && to.Entry(owner(c)) != nil
	for i, a := range ended {
		flows = append(flows, Flow{
			Proto: api.TCP, Frontend: c.Key().Addr, Endpoint: a,
			Unconfirmed: !confirmed, Namespace: owner(c).Namespace, Pod: pods[i].Name,
		})
	}
	return flows
}

// owner returns the Service that had the frontend. If the frontend is new, it returns the Service that has it now.
func owner(c service.Change) api.Name {
	if c.Old != nil {
		return c.Old.Service.Name
	}
	return c.New.Service.Name
}

// lost returns the endpoints that may no longer keep their flows, sorted.
func lost(c service.Change) []netip.AddrPort {
	if !c.Old.KeepsFlows() {
		return nil
	}
	keep := c.New.FlowEndpoints()
	return slices.DeleteFunc(c.Old.FlowEndpoints(), func(a netip.AddrPort) bool {
		for len(keep) > 0 && keep[0].Compare(a) < 0 {
			keep = keep[1:] // both are sorted
		}
		return len(keep) > 0 && keep[0] == a
	})
}

// unrouted returns the endpoints that no longer get new flows while other endpoints do, sorted.
func unrouted(c service.Change) (all []netip.AddrPort) {
	if c.Old == nil || c.New == nil {
		return nil
	}
	for i, r := range [...]*service.Route{c.Old.Internal, c.Old.External} {
		if i > 0 && r == c.Old.Internal {
			break
		}
		was, is := r.Endpoints, c.New.Internal.Endpoints
		for len(was) > 0 && len(is) > 0 && was[0].Addr == is[0].Addr {
			was, is = was[1:], is[1:]
		}
		for _, e := range was {
			for len(is) > 0 && is[0].Addr.Compare(e.Addr) < 0 {
				is = is[1:] // both are sorted
			}
			if (len(is) == 0 || is[0].Addr != e.Addr) && !c.New.RoutesTo(e.Addr) {
				all = append(all, e.Addr)
			}
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all)
}

// termination returns the termination policy of the Service that had the frontend. kept reports whether connections to
// an endpoint stay because the Service has the endpoint at another frontend.
func termination(c service.Change, to *service.Table) (policy service.TerminationPolicy, kept func(netip.AddrPort) bool) {
	none := func(netip.AddrPort) bool { return false }
	if c.Old == nil {
		return service.TerminateNever, none // a new frontend has no connections
	}
	e := to.Entry(c.Old.Service.Name)
	if e == nil || len(e.Frontends) == 0 {
		return c.Old.Termination, none
	}
	policy = e.Frontends[0].Termination // equal in all frontends of a Service
	if c.New != nil && c.New.Service.Name == e.Name {
		return policy, none
	}
	return policy, func(a netip.AddrPort) bool {
		return slices.ContainsFunc(e.Frontends, func(f *service.Frontend) bool {
			return f.Proto == api.TCP && f.KeepsFlowsTo(a)
		})
	}
}

// moved returns the UDP flows that are wrong because the node serves NodePorts on other addresses than before.
func moved(from, to *service.Table) []Flow {
	if from.Settings.SameNodePorts(to.Settings) {
		return nil
	}
	var flows []Flow
	for f := range to.Frontends() {
		if f.Proto != api.UDP || !f.NodePort() || !has(from, f) {
			continue
		}
		flow := Flow{Proto: api.UDP, Frontend: f.Addr, Namespace: f.Service.Namespace}
		if f.KeepsFlows() {
			flows = append(flows, flow) // to an address that did not serve NodePorts before
		}
		for _, a := range f.FlowEndpoints() {
			flow.Endpoint, flow.OnlyUnserved = a, true
			flows = append(flows, flow)
		}
	}
	return flows
}

// has reports whether the Service of f had a frontend with the same key in the table.
func has(t *service.Table, f *service.Frontend) bool {
	e := t.Entry(f.Service.Name)
	return e != nil && slices.ContainsFunc(e.Frontends, func(o *service.Frontend) bool { return o.Key() == f.Key() })
}
