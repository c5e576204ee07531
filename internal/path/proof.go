package path

import (
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// A Proof says which probe shows whether a prediction is true.
type Proof struct {
	Sender    string         // the node that sends
	To        netip.AddrPort // invalid: there is no packet to send
	Proto     api.Proto
	Endpoints []netip.AddrPort // that the packet can be translated to, or To itself
	Nodes     []string         // that can be on the way, the likely ones first
	Send      trace.Send
	Relayed   bool // a program on the node opens its own connection to the endpoint
}

// MaxNodes bounds the nodes that are watched for one probe.
const MaxNodes = 32

// prove fills in the Proof after the prediction.
func (p *predictor) prove(first *Node) {
	if !p.dst.IsValid() || !p.src.IsValid() || first == nil {
		return
	}
	x := Proof{Sender: first.Name, To: p.dst, Proto: p.proto, Relayed: p.Mode == "userspace", Nodes: []string{first.Name}}
	switch {
	case p.q.From.Kind == "Outside":
		x.Send.Outside = p.src
	case !p.fromNode():
		x.Send.Pod = p.src
	}
	if p.proto == api.UDP && p.dst.Port() == 53 {
		x.Send.Name = "kubernetes.default.svc." + p.domain()
	}
	addNode := func(name string) {
		if p.Nodes[name] != nil && !slices.Contains(x.Nodes, name) {
			x.Nodes = append(x.Nodes, name)
		}
	}
	for _, s := range p.out.Steps {
		addNode(s.Node)
	}
	addNode(p.endpointAt(p.dst).node)
	for _, kept := range []bool{true, false} {
		for _, c := range p.out.Candidates {
			a, err := netip.ParseAddrPort(c.Addr)
			if c.Kept != kept || err != nil || a.Port() == 0 {
				continue
			}
			addNode(c.Node)
			if len(x.Endpoints) < trace.MaxEndpoints {
				x.Endpoints = append(x.Endpoints, a)
			}
		}
	}
	if len(x.Endpoints) == 0 {
		x.Endpoints = []netip.AddrPort{p.dst}
	}
	p.out.Proof = x
}

// Orders returns the order for each node that can be on the way, at most MaxNodes, and the nodes that are left out. run
// names the probe, and tag is one of trace.Tags.
func (x Proof) Orders(run string, tag uint8) (orders []trace.Order, leftOut []string) {
	for _, node := range x.Nodes {
		if len(orders) == MaxNodes {
			leftOut = append(leftOut, node)
			continue
		}
		o := trace.Order{Run: run, Node: node, Proto: uint8(x.Proto), To: x.To, Endpoints: x.Endpoints, Tag: tag, Relayed: x.Relayed}
		if node == x.Sender {
			send := x.Send
			o.Send = &send
		}
		orders = append(orders, o)
	}
	return orders, leftOut
}

// OursIn returns a function that reports whether a rule is Fairway's in a mode of the agents. In mode iptables the chains
// of Services have kube-proxy's names. The kubelet has chains with such names in all modes.
func OursIn(mode string) func(trace.Rule) bool {
	return func(r trace.Rule) bool {
		kubelet := r.Chain == "KUBE-FIREWALL" || r.Chain == "KUBE-KUBELET-CANARY"
		return trace.Ours(r) || mode == "iptables" && !kubelet && len(r.Chain) > 5 && r.Chain[:5] == "KUBE-"
	}
}
