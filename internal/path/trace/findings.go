package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// findings explains the end of the way.
func (f follower) findings(w Way) (all []Finding) {
	add := func(code Code, node string, facts ...string) {
		m := map[string]string{}
		for i := 0; i+1 < len(facts); i += 2 {
			m[facts[i]] = facts[i+1]
		}
		all = append(all, Finding{code, node, m})
	}
	e := w.End
	if e.Class == Delivered {
		return nil
	}
	if e.Rule != nil {
		code := OwnRule
		if e.Foreign {
			code = ForeignRule
		}
		add(code, e.Node, "rule", e.Rule.Place(), "text", e.Rule.Text, "chain", e.Rule.Chain)
		return all
	}
	if f.Heard.Outcome == TooBig {
		node, link := f.narrow(w)
		add(TooLarge, node, "mtu", strconv.Itoa(f.Heard.MTU), "link", link)
		return all
	}
	if h, ok := f.stale(w); ok {
		add(StaleFlow, h.Node, "to", h.After.Dst.String())
	}
	if n := len(w.Hops); n > 0 && e.Drop == nil && w.Hops[n-1].Left && w.Hops[n-1].After.Dst == f.To && !slices.Contains(f.Endpoints, f.To) && w.Hops[n-1].Out != "" {
		add(NotTranslated, e.Node, "to", f.To.String(), "link", w.Hops[n-1].Out)
	}
	if e.Class == RefusedBy || e.Class == Unanswered {
		f.endpointFindings(w, add)
	}
	if e.Class == RefusedBy {
		f.ownAddress(w, add)
	}
	if e.Class == ReplyLost || e.Class == Unanswered {
		f.replyFindings(w, add)
	}
	if e.Drop != nil {
		f.dropFindings(e, add)
	} else if programs := f.state(e.Next).Programs; e.Next != "" && len(programs) > 0 {
		add(TCProgram, e.Next, "programs", strings.Join(programs, ", "))
	}
	if e.Class == LostAfter || e.Class == DroppedBy || e.Class == NotSent || e.Class == RefusedBy {
		f.routeFindings(w, add)
	}
	return all
}

type addFunc func(code Code, node string, facts ...string)

// stale returns a hop on which conntrack's old entry led the packet to an address that is no endpoint.
func (f follower) stale(w Way) (Hop, bool) {
	for _, h := range w.Hops {
		if h.Known && h.Before.Dst == f.To && h.After.Dst != f.To && !slices.Contains(f.Endpoints, h.After.Dst) {
			return h, true
		}
	}
	return Hop{}, false
}

// endpointFindings looks at the sockets of the endpoint.
func (f follower) endpointFindings(w Way, add addFunc) {
	if len(w.Hops) == 0 {
		return
	}
	to := w.Hops[len(w.Hops)-1].After.Dst
	known := false
	for _, o := range f.Observations {
		if o.State == nil {
			continue
		}
		for _, e := range o.State.Endpoints {
			if e.Addr != to.Addr() || !e.Entered {
				continue
			}
			known = w.End.Class == RefusedBy
			var here, elsewhere, texts []string
			for _, l := range e.Listeners {
				texts = append(texts, l.Addr.String())
				switch a := l.Addr.Addr(); {
				case l.Addr.Port() != to.Port():
				case a == to.Addr() || a.IsUnspecified():
					here = append(here, l.Addr.String())
					if l.Full() || e.Overflows > 0 {
						known = true
						add(QueueFull, o.Node, "addr", to.String(), "queue", strconv.Itoa(l.Queue), "backlog", strconv.Itoa(l.Backlog), "overflows", fmt.Sprint(e.Overflows))
					}
				default:
					elsewhere = append(elsewhere, l.Addr.String())
				}
			}
			slices.Sort(texts)
			switch {
			case len(here) > 0:
			case len(elsewhere) > 0:
				add(OtherAddress, o.Node, "addr", to.String(), "listens", strings.Join(elsewhere, " "))
			default:
				add(NoListener, o.Node, "addr", to.String(), "listens", strings.Join(texts, " "))
			}
		}
	}
	if f.home(w.Hops[len(w.Hops)-1]) == "" || known {
		return
	}
	if w.End.Class == RefusedBy {
		add(EndpointRefuses, w.End.Node, "addr", to.String())
	} else {
		add(EndpointSilent, w.End.Node, "addr", to.String())
	}
}

// ownAddress finds a NodePort on an address that does not serve NodePorts: the node itself got the packet.
func (f follower) ownAddress(w Way, add addFunc) {
	if len(w.Hops) == 0 {
		return
	}
	last := w.Hops[len(w.Hops)-1]
	for _, o := range f.Observations {
		if o.State != nil && o.Node == last.Node && last.After.Dst == f.To && slices.Contains(o.State.Addresses, f.To.Addr()) {
			add(NotAnAddress, o.Node, "addr", f.To.String())
		}
	}
}

// replyFindings finds the node that translated the probe and did not see the answer.
func (f follower) replyFindings(w Way, add addFunc) {
	if len(w.Reply) == 0 {
		return
	}
	for _, h := range w.Hops {
		if h.After == h.Before {
			continue
		}
		if !slices.ContainsFunc(w.Reply, func(r Hop) bool { return r.Node == h.Node }) {
			add(ReplyAstray, h.Node, "from", h.After.Dst.String(), "seen", lastNode(w.Reply))
		}
	}
}

// dropFindings explains the kernel's reason with the node's state.
func (f follower) dropFindings(e End, add addFunc) {
	state := f.state(e.Node)
	switch e.Drop.Reason {
	case "IP_RPFILTER":
		back := ""
		for _, r := range state.Routes {
			if r.Kind == "unicast" && r.Link != e.Link {
				back = r.Link
			}
		}
		add(ReversePath, e.Node, "link", e.Link, "back", back)
	case "TC_INGRESS", "TC_EGRESS", "XDP":
		add(TCProgram, e.Node, "link", e.Link, "programs", strings.Join(state.Programs, ", "))
	case "PKT_TOO_BIG":
		add(TooLarge, e.Node, "link", e.Link)
	}
}

// routeFindings looks for what keeps the nodes of the way from sending the packet on.
func (f follower) routeFindings(w Way, add addFunc) {
	if w.End.Drop != nil && w.End.Drop.Pod {
		return
	}
	s := f.state(w.End.Node)
	for name, value := range s.Sysctls {
		if (name == "net.ipv4.ip_forward" || name == "net.ipv6.conf.all.forwarding") && value == "0" {
			add(ForwardingOff, w.End.Node, "sysctl", name)
		}
	}
	count, limit := s.Sysctls["net.netfilter.nf_conntrack_count"], s.Sysctls["net.netfilter.nf_conntrack_max"]
	if n, _ := strconv.Atoi(count); n > 0 && count == limit {
		add(ConntrackFull, w.End.Node, "count", count, "max", limit)
	}
	done := map[string]bool{}
	for _, r := range s.Routes {
		if !f.concerns(w, r.To) {
			continue
		}
		key := r.To.String() + r.Kind
		switch {
		case done[key]:
			continue
		case r.Kind == "martian" && w.End.Drop == nil && f.filters(s, r.In):
			add(ReversePath, w.End.Node, "link", r.In, "from", r.From.String())
		case r.Kind == "none" || r.Kind == "blackhole" || r.Kind == "unreachable" || r.Kind == "prohibit":
			if r.In == "" || !f.forwardingOff(s) {
				add(NoRoute, w.End.Node, "to", r.To.String(), "kind", r.Kind)
			}
		case r.Kind == "unicast" && !r.Up:
			add(LinkDown, w.End.Node, "link", r.Link, "to", r.To.String())
		case r.Neighbour == "failed" || r.Neighbour == "incomplete":
			add(NeighbourFailed, w.End.Node, "link", r.Link, "via", cmp.Or(r.Via, r.To).String())
		default:
			continue
		}
		done[key] = true
	}
}

// filters reports whether the node checks the reverse path on a link.
func (f follower) filters(s State, link string) bool {
	strict := func(name string) bool { v := s.Sysctls["net.ipv4.conf."+name+".rp_filter"]; return v != "" && v != "0" }
	return strict("all") || strict(link)
}

func (f follower) forwardingOff(s State) bool {
	return s.Sysctls["net.ipv4.ip_forward"] == "0" || s.Sysctls["net.ipv6.conf.all.forwarding"] == "0"
}

// concerns reports whether the packet was on its way to an address, in whatever translation.
func (f follower) concerns(w Way, to netip.Addr) bool {
	if slices.ContainsFunc(w.Hops, func(h Hop) bool { return h.After.Dst.Addr() == to || h.Before.Dst.Addr() == to }) {
		return true
	}
	n := len(w.Hops)
	if n > 0 && w.Hops[n-1].After.Dst == f.To { // it went no further, or was translated and dropped in the same hook
		return slices.ContainsFunc(f.Endpoints, func(e netip.AddrPort) bool { return e.Addr() == to })
	}
	return n == 0 && to == f.To.Addr()
}

// narrow returns the node and the link with the MTU that the sender was told.
func (f follower) narrow(w Way) (node, link string) {
	for _, h := range w.Hops {
		for _, r := range f.state(h.Node).Routes {
			if r.MTU == f.Heard.MTU && r.To == h.After.Dst.Addr() {
				return h.Node, r.Link
			}
		}
	}
	return f.Sender, ""
}

// state returns the state of a node.
func (f follower) state(node string) State {
	for _, o := range f.Observations {
		if o.State != nil && o.Node == node {
			return *o.State
		}
	}
	return State{}
}
