package path

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// A Proof says which probe shows whether a prediction is true.
type Proof struct {
	Sender    string         // the node that sends
	To        netip.AddrPort // invalid: there is no packet to send
	Proto     api.Proto
	Client    netip.Addr
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
	x := Proof{Sender: first.Name, To: p.dst, Proto: p.proto, Client: p.src, Relayed: p.Mode == "userspace", Nodes: []string{first.Name}}
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

// LiveOrders returns the orders for the packets of the client itself. No node sends.
func (x Proof) LiveOrders(run string, limit time.Duration) (orders []trace.Order, leftOut []string) {
	orders, leftOut = x.Orders(run, 0)
	for i := range orders {
		orders[i].Client, orders[i].Send, orders[i].For = x.Client, nil, limit
	}
	return orders, leftOut
}

// HeardLive returns what the client of the first connection to the address heard. Nothing is heard if the nodes saw no
// packet of it.
func HeardLive(r trace.Record) (h trace.Heard, seen bool) {
	for _, hop := range trace.Follow(r).Hops {
		if hop.Before.Dst == r.To {
			h.Local, seen = hop.Before.Src, true
			break
		}
	}
	r.Heard = h
	way := trace.Follow(r)
	h.Outcome = trace.Silent
	if !seen || len(way.Hops) == 0 {
		return h, false
	}
	for _, back := range way.Reply {
		if back.Node != way.Hops[0].Node || !back.Left {
			continue
		}
		h.Outcome = trace.Answered
		if p := back.Steps[0].Packet; strings.Contains(p.Flags, "RST") || p.Proto == 1 || p.Proto == 58 {
			h.Outcome = trace.Refused
		}
	}
	return h, true
}

// OursIn returns a function that reports whether a rule is Fairway's in a mode of the agents. In mode iptables the chains
// of Services have kube-proxy's names. The kubelet has chains with such names in all modes.
func OursIn(mode string) func(trace.Rule) bool {
	return func(r trace.Rule) bool {
		kubelet := r.Chain == "KUBE-FIREWALL" || r.Chain == "KUBE-KUBELET-CANARY"
		return trace.Ours(r) || mode == "iptables" && !kubelet && len(r.Chain) > 5 && r.Chain[:5] == "KUBE-"
	}
}
