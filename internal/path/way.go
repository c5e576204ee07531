package path

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/service"
)

// A terminus is the end of a way: a pod, a node, or an address outside of the cluster.
type terminus struct {
	addr netip.AddrPort
	pod  *Pod // nil: no pod
	node string
	cidr netip.Prefix // the range of its node's pods
}

func (p *predictor) endpointAt(a netip.AddrPort) terminus {
	t := terminus{addr: a, pod: p.podAt(a.Addr())}
	if t.pod != nil {
		t.node = t.pod.Node
	} else if n := p.nodeAt(a.Addr()); n != nil {
		t.node = n.Name
	}
	if n, cidr := p.nodeOfPods(a.Addr()); n != nil {
		t.node, t.cidr = cmp.Or(t.node, n.Name), cidr
	}
	return t
}

// name returns the name of the end for people.
func (t terminus) name() string {
	switch {
	case t.pod != nil:
		return t.pod.Name.Name
	case t.node != "":
		return t.node
	}
	return t.addr.Addr().String()
}

// A denial says which policy denies a packet; text is empty if none does.
type denial struct {
	text   string
	egress bool
	found  *networkpolicy.Finding
}

// judge asks the policies of both ends.
func (p *predictor) judge(end terminus, src netip.Addr) denial {
	if d := p.judgeEgress(end); d.text != "" {
		return d
	}
	return p.judgeIngress(end, src)
}

func (p *predictor) judgeEgress(end terminus) denial {
	if p.pod == nil || p.pod.HostNetwork || p.Policies == nil || p.NotEnforced != "" {
		return denial{}
	}
	e := networkpolicy.Explain(p.Policies, networkpolicy.Connection{
		From: networkpolicy.Endpoint{Addr: p.src, Pod: p.pod.Pod}, To: policyEnd(end), Proto: p.proto, Port: end.addr.Port(),
	})
	return deny(e.Egress, true)
}

// judgeIngress asks the policies of the receiver. They see the client's own address on the node that translated it, and
// a masquerading node's address on other nodes. A node's own packets reach the pods of this node.
func (p *predictor) judgeIngress(end terminus, src netip.Addr) denial {
	if end.pod == nil || end.pod.HostNetwork || p.Policies == nil || p.NotEnforced != "" || p.ownPacket() && end.node == p.node.Name {
		return denial{}
	}
	from := networkpolicy.Endpoint{Addr: src}
	if src != p.src && end.node == p.node.Name {
		from.Addr = p.src
	}
	if p.pod != nil && !p.pod.HostNetwork && from.Addr == p.src {
		from.Pod = p.pod.Pod
	}
	e := networkpolicy.Explain(p.Policies, networkpolicy.Connection{From: from, To: policyEnd(end), Proto: p.proto, Port: end.addr.Port()})
	return deny(e.Ingress, false)
}

func policyEnd(t terminus) networkpolicy.Endpoint {
	e := networkpolicy.Endpoint{Addr: t.addr.Addr()}
	if t.pod != nil {
		e.Pod = t.pod.Pod
	}
	return e
}

func deny(f *networkpolicy.Finding, egress bool) denial {
	if f == nil || f.Allowed {
		return denial{}
	}
	by := strings.Join(f.IsolatedBy, ", ")
	if f.Rule != nil {
		by = f.Rule.String()
	}
	return denial{text: by, egress: egress, found: f}
}

// denied adds the step of the sender's policies for a packet that leaves with its addresses, and reports whether it ends
// there.
func (p *predictor) denied(end terminus) bool { return p.deniedBy(end, p.src) }

func (p *predictor) deniedBy(end terminus, _ netip.Addr) bool {
	if p.pod == nil || p.pod.HostNetwork || p.Policies == nil || slices.ContainsFunc(p.out.Steps, func(s Step) bool { return s.Kind == KindPolicy }) {
		return false
	}
	d := p.judgeEgress(end)
	s := Step{Node: p.pod.Node, Kind: KindPolicy, Hook: "postrouting", State: Accepted, Text: "policy of " + p.pod.Name.Name, Detail: p.policyText(p.pod, networkpolicy.Egress)}
	if d.text != "" {
		s.State, s.Detail, s.Reason = Dropped, "denied by "+d.text, reason(PolicyDenies, d.text)
		p.explainPolicy(end, d)
	}
	s.Refs = policyRefs(d)
	p.step(s)
	return p.ended
}

// ingress adds the step of the receiver's policies.
func (p *predictor) ingress(end terminus, src netip.Addr) {
	if end.pod == nil || end.pod.HostNetwork || p.Policies == nil {
		return
	}
	d := p.judgeIngress(end, src)
	s := Step{Node: end.node, Kind: KindPolicy, Hook: "postrouting", State: Accepted, Text: "policy of " + end.name(), Detail: p.policyText(end.pod, networkpolicy.Ingress)}
	if d.text != "" {
		s.State, s.Detail, s.Reason = Dropped, "denied by "+d.text, reason(PolicyDenies, d.text)
		p.explainPolicy(end, d)
	}
	s.Refs = policyRefs(d)
	p.step(s)
}

// policyText describes the policies of a pod's direction that let the packet pass.
func (p *predictor) policyText(pod *Pod, d networkpolicy.Direction) string {
	if p.NotEnforced != "" {
		return "policies are not enforced"
	}
	all := networkpolicy.ExplainPod(p.Policies, pod.Pod)
	i := slices.IndexFunc(all, func(i networkpolicy.Isolation) bool { return i.Direction == d.String() })
	if i >= 0 && len(all[i].IsolatedBy) > 0 {
		return "allowed; isolated by " + strings.Join(all[i].IsolatedBy, ", ")
	}
	return "no NetworkPolicy selects it"
}

func policyRefs(d denial) (refs []Ref) {
	if d.found == nil {
		return nil
	}
	for _, name := range d.found.IsolatedBy {
		ns, n, _ := strings.Cut(name, "/")
		refs = append(refs, Ref{API: "NetworkPolicy", NS: ns, Name: n})
	}
	return refs
}

// ways are the words for the values of POD_NETWORK.
var ways = map[string]string{
	"routes": "a route", "vxlan": "the VXLAN tunnel", "wireguard": "WireGuard", "auto": "a route, or the tunnel",
	"bgp": "a route, or routers",
}

// route adds the step from the current node to the end.
func (p *predictor) route(end terminus) {
	s := Step{Node: p.node.Name, Kind: KindRoute, Hook: "forward", State: Accepted, Refs: []Ref{{Kernel: "route", Text: end.addr.Addr().String(), Show: "ip route get " + end.addr.Addr().String()}}}
	switch {
	case end.node == p.node.Name && end.pod != nil:
		s.Text, s.Detail = "pod of this node", end.addr.Addr().String()
	case end.node == p.node.Name && !end.cidr.IsValid():
		s.Text, s.Detail = "this node's own address", end.addr.Addr().String()
	case end.node == p.node.Name:
		s.State, s.Text, s.Detail, s.Reason = Dropped, "no pod has this address", end.addr.Addr().String(), reason(NoSuchPod, "no pod has the address")
		p.explainNoPod(end)
	case end.pod == nil && end.cidr.IsValid() && p.nodeAt(end.addr.Addr()) == nil:
		s.State, s.Text, s.Detail, s.Reason = Dropped, p.toNode(end), "no pod there has the address", reason(NoSuchPod, "no pod has the address")
		p.explainNoPod(end)
	case end.node != "" && (end.cidr.IsValid() || end.pod == nil):
		s.Text, s.Detail = p.toNode(end), p.wayText(end)
	case end.node != "":
		s.Text, s.Detail = "to "+end.node, "by another program's pod network"
		if ways[p.PodNetwork] != "" {
			s.State, s.Detail, s.Reason = Dropped, "it has no podCIDR for "+end.addr.Addr().String(), reason(NoPodCIDR, "no podCIDR")
			p.finding(NoPodCIDR, Fatal, "kubectl get node "+end.node+" -o jsonpath={.spec.podCIDRs}", "No podCIDR of %s contains %v, so %s has no route to it.", end.node, end.addr.Addr(), p.node.Name)
		}
	default:
		s.Text, s.Detail = "leaves the cluster", "what follows is not the cluster's"
		p.out.NotLooked = append(p.out.NotLooked, "the network outside of the cluster")
	}
	p.step(s)
}

func (p *predictor) toNode(end terminus) string {
	if end.cidr.IsValid() {
		return "route " + end.cidr.String() + " to " + end.node
	}
	return "route to " + end.node
}

func (p *predictor) wayText(end terminus) string {
	n := p.Nodes[end.node]
	if n == nil || !end.cidr.IsValid() {
		return end.addr.Addr().String()
	}
	text := ways[p.PodNetwork]
	if text == "" {
		return "by another program's pod network"
	}
	return "via " + addrText(of(n.Addrs, end.addr.Addr().Is4())) + " by " + text
}

// socket is the last step.
func (p *predictor) socket(end terminus) {
	if end.node == "" {
		p.out.Steps[len(p.out.Steps)-1].State = Accepted
		return
	}
	s := Step{Node: end.node, Kind: KindSocket, State: Delivered, Text: "to " + end.name() + " " + end.addr.String()}
	p.step(s)
	if !slices.Contains(p.out.NotLooked, notListening) {
		p.out.NotLooked = append(p.out.NotLooked, notListening)
	}
}

const notListening = "whether a program listens there"

// reply adds the way back of an answer.
func (p *predictor) reply(from netip.AddrPort, to netip.Addr) {
	if n := len(p.out.Steps); p.out.Steps[n-1].State != Delivered {
		return
	}
	s := Step{N: 1, Node: p.node.Name, Kind: KindReply, State: Accepted, Text: "by " + p.node.Name + "'s conntrack", Detail: from.String() + " seen as " + p.dst.String()}
	s.Before, s.After = &Addresses{Src: from.String(), Dst: addrText(to)}, &Addresses{Src: p.dst.String(), Dst: p.source()}
	p.out.Reply = append(p.out.Reply, s)
}

func (p *predictor) replyDirect(end terminus) {
	if n := len(p.out.Steps); p.out.Steps[n-1].State == Delivered {
		p.out.Reply = append(p.out.Reply, Step{N: 1, Node: end.node, Kind: KindReply, State: Accepted, Text: "by the same way back", Detail: "no address changes"})
	}
}

// serviceRefs names the objects behind a Service's address.
func (p *predictor) serviceRefs(d service.Decision) []Ref {
	f := d.Frontend
	if f == nil {
		return nil
	}
	return append([]Ref{{API: "Service", NS: f.Service.Namespace, Name: f.Service.Name.Name, Field: "port " + cmp.Or(f.Service.Port, d.Frontend.Key().String())}}, p.kernelFrontend(f)...)
}
