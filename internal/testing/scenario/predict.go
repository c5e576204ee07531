package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Packet is the first packet of a flow, with its expected outcome.
type Packet struct {
	Text  string // as in the file
	From  From
	To    netip.AddrPort
	Proto api.Proto
	Want  Outcome
}

// From is the client of a packet.
type From struct {
	Place string // the name of a Place, or an endpoint's address
	Addr  netip.Addr
}

// Source is the kind of address that an endpoint sees.
type Source uint8

// The sources. AnySource expects nothing.
const (
	AnySource Source = iota
	Client           // the client's own address
	Node             // an address of the node
)

// String returns "any", "client" or "node".
func (s Source) String() string { return [...]string{"any", "client", "node"}[s] }

func (s *Source) parse(text string) error {
	switch text {
	case "client":
		*s = Client
	case "node":
		*s = Node
	default:
		return fmt.Errorf("source %q is neither client nor node", text)
	}
	return nil
}

// An Outcome is the result of a packet.
type Outcome struct {
	Action  service.Action
	Reaches []Reach // endpoints that may answer, sorted; empty unless Action is Forward
	// Affinity says that a client always gets one of the endpoints. Scenarios do not set it; Predict does.
	Affinity bool
	// Subset says that a client may never reach some of the endpoints: the algorithm does not choose at random or in
	// turns, or the chances are not equal. Predict sets it.
	Subset bool
}

// A Reach is an endpoint and the source address that it sees.
type Reach struct {
	Endpoint netip.AddrPort
	Source   Source
}

func (o *Outcome) sort() {
	slices.SortFunc(o.Reaches, func(a, b Reach) int { return a.Endpoint.Compare(b.Endpoint) })
}

// String returns the outcome as in a scenario: "drop", "one-of 10.244.1.5:8080(client)".
func (o Outcome) String() string {
	if o.Action != service.Forward {
		return o.Action.String()
	}
	words := []string{"one-of"}
	for _, r := range o.Reaches {
		words = append(words, fmt.Sprintf("%v(%v)", r.Endpoint, r.Source))
	}
	return strings.Join(words, " ")
}

// Agrees reports whether an outcome agrees with the expected outcome of p.
func (p Packet) Agrees(got Outcome) bool {
	return p.Want.Action == got.Action && slices.EqualFunc(p.Want.Reaches, got.Reaches, func(w, g Reach) bool {
		if w.Endpoint != g.Endpoint {
			return false
		}
		// The node's own packets have an address of the node, with or without masquerading.
		return w.Source == AnySource || g.Source == AnySource || w.Source == g.Source || p.From.Place == World.Node.Name
	})
}

// Predict returns the outcome of a packet under a table. It is the slow and obvious reference that datapaths are
// compared with. It returns false if the table does not decide about the packet.
func Predict(t *service.Table, p Packet) (Outcome, bool) {
	f := frontend(t, p)
	switch {
	case f != nil && len(f.Sources) > 0 && !contains(f.Sources, p.From.Addr):
		return Outcome{Action: service.Drop}, true
	case f == nil && isClusterIP(t, p.To.Addr()):
		return Outcome{Action: service.Reject}, true
	case f == nil && contains(t.Settings.ServiceCIDRs, p.To.Addr()):
		return Outcome{Action: service.Drop}, true
	case f == nil && isExternal(t, p.To.Addr()) && !ofNode(p.To.Addr()) && !ofNode(p.From.Addr):
		return Outcome{Action: service.Reject}, true
	case f == nil:
		// A port of the node without a listener refuses by itself.
		return Outcome{Action: service.Reject}, ofNode(p.To.Addr())
	}
	isPod := contains(t.Settings.Pods, p.From.Addr) || len(t.Settings.PodInterfaces) > 0 && p.From.podHere(t)
	isNode := ofNode(p.From.Addr)
	route := f.External
	if isPod || isNode {
		route = f.Internal
	}
	out := Outcome{Action: route.Action, Affinity: route.Action == service.Forward && f.Affinity > 0}
	out.Subset = f.Balance != service.Random && f.Balance != service.RoundRobin
	for _, e := range route.Endpoints {
		out.Subset = out.Subset || e.Weight != 0
		r := Reach{Endpoint: e.Addr, Source: Client}
		hairpin := e.Local && e.Addr.Addr() == p.From.Addr
		offCluster := route.Masquerade == service.MasqueradeOffCluster && !isPod
		switch {
		case isNode:
			r.Source = Node
		case ofNode(e.Addr.Addr()):
			// The packet never leaves the node. Some mechanisms cannot masquerade it, and its reply comes back in any
			// case.
			r.Source = AnySource
		case hairpin || offCluster || route.Masquerade == service.MasqueradeAll:
			r.Source = Node
		}
		out.Reaches = append(out.Reaches, r)
	}
	out.sort()
	return out, true
}

// podHere reports whether a packet comes from a pod of the node by a pod's interface: from an endpoint on the node, or
// from the pod that is no endpoint.
func (f From) podHere(t *service.Table) bool {
	if f.Place == World.Pod.Name {
		return true
	}
	for at := range t.Frontends() {
		for _, r := range [...]*service.Route{at.Internal, at.External} {
			for _, e := range r.Endpoints {
				if e.Local && e.Addr.Addr() == f.Addr && !ofNode(f.Addr) {
					return true
				}
			}
		}
	}
	return false
}

// Facts returns the packet for service.Lookup, with the facts that the node knows besides the header.
func (p Packet) Facts(t *service.Table) service.Packet {
	return service.Packet{
		From: p.From.Addr, To: p.To, Proto: p.Proto,
		FromPod:  len(t.Settings.PodInterfaces) > 0 && p.From.podHere(t),
		FromNode: ofNode(p.From.Addr), ToNode: ofNode(p.To.Addr()),
	}
}

// frontend returns the frontend that answers at the packet's destination: a frontend of the address, or else a
// NodePort.
func frontend(t *service.Table, p Packet) *service.Frontend {
	var nodePort *service.Frontend
	for f := range t.Frontends() {
		if f.Proto != p.Proto || f.Addr.Port() != p.To.Port() {
			continue
		}
		switch {
		case f.Addr == p.To:
			return f
		case f.NodePort() && f.Addr.Addr().Is4() == p.To.Addr().Is4() && ofNode(p.To.Addr()) && servesNodePorts(t, p.To.Addr()):
			nodePort = f
		}
	}
	return nodePort
}

// isClusterIP reports whether an address belongs only to a Service.
func isClusterIP(t *service.Table, a netip.Addr) bool {
	for f := range t.Frontends() {
		if f.ClusterIP && f.Addr.Addr() == a {
			return true
		}
	}
	return false
}

// isExternal reports whether an address is a load balancer's or an external IP, and no node's.
func isExternal(t *service.Table, a netip.Addr) bool {
	for f := range t.Frontends() {
		if f.OwnsAddress() && f.Addr.Addr() == a {
			return true
		}
	}
	return false
}

// servesNodePorts reports whether an address serves NodePorts. Loopback addresses never do.
func servesNodePorts(t *service.Table, a netip.Addr) bool {
	return !a.IsLoopback() && contains(t.Settings.NodePorts, a)
}

func contains(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}
