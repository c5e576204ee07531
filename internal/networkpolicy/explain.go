package networkpolicy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// An Endpoint is one end of a connection: an address, and the pod that has it. Pod is nil if no pod has the address.
type Endpoint struct {
	Addr netip.Addr // invalid: the pod has no address of the connection's family
	Pod  *api.Pod
}

// A Connection is a question to Explain. Port is the destination's. Proto 0 asks about no port: a rule for some ports
// does not decide then.
type Connection struct {
	From, To Endpoint
	Proto    api.Proto
	Port     uint16
}

// A Reason says why one direction of a pod allows or denies a packet.
type Reason string

// The reasons.
const (
	RuleAllows   Reason = "RuleAllows"   // Finding.Rule allows the packet
	RuleDenies   Reason = "RuleDenies"   // Finding.Rule denies the packet
	Isolated     Reason = "Isolated"     // a NetworkPolicy isolates the pod, and no rule allows the packet
	OwnAddress   Reason = "OwnAddress"   // a pod reaches itself
	OwnNode      Reason = "OwnNode"      // NetworkPolicies isolate no pod from its node
	NoRuleDenies Reason = "NoRuleDenies" // ClusterNetworkPolicies have rules for the pod, but none for the packet
	NoPolicy     Reason = "NoPolicy"     // no policy selects the pod
)

// Allows reports whether a packet passes for this reason.
func (r Reason) Allows() bool { return r != RuleDenies && r != Isolated }

// A Judge is a ClusterNetworkPolicy with rules for a pod.
type Judge struct {
	Tier     string `json:"tier"`
	Name     string `json:"name"`
	Priority int    `json:"priority"`
}

// An Isolation lists the policies that decide about one direction of a pod.
type Isolation struct {
	Direction  string   `json:"direction"`            // ingress or egress
	IsolatedBy []string `json:"isolatedBy,omitempty"` // NetworkPolicies, sorted
	JudgedBy   []Judge  `json:"judgedBy,omitempty"`   // ClusterNetworkPolicies, in the order in which they decide
}

// A Finding is the decision of one direction of a pod about packets from or to a peer.
type Finding struct {
	Pod string `json:"pod"`
	Isolation
	Peer    netip.Addr `json:"peer"`
	Allowed bool       `json:"allowed"`
	Reason  Reason     `json:"reason"`
	Rule    *RuleName  `json:"rule,omitempty"`   // the rule that decides; nil: no rule does
	Passed  []RuleName `json:"passed,omitempty"` // rules that left the decision to the next tier
	// PeerOnly are rules that include the peer, but not the port. PortOnly are rules that include the port, but not
	// the peer. Both, and Limits, are empty unless Reason is Isolated.
	PeerOnly []RuleName `json:"peerOnly,omitempty"`
	PortOnly []RuleName `json:"portOnly,omitempty"`
	Limits   []Exceeded `json:"limitsExceeded,omitempty"`
}

// An Exceeded is a NetworkPolicy that exceeds a limit on the pod's node. It isolates pods, and its rules do not count.
type Exceeded struct {
	Policy string `json:"policy"`
	Limit  string `json:"limit"`
}

// An Explanation is the decision about a connection. Egress is the sender's, Ingress the receiver's. An end has no
// Finding if no policy sees it: it is no pod, it is on its node's network, or it has no address of the family.
type Explanation struct {
	Egress  *Finding `json:"egress,omitempty"`
	Ingress *Finding `json:"ingress,omitempty"`
	Allowed bool     `json:"allowed"`
}

// Explain returns the decision of a cluster's policies about a connection, with the reasons. It uses Evaluate, which
// agrees with Lookup by a test.
func Explain(c *Cluster, conn Connection) Explanation {
	e := Explanation{Allowed: true}
	find := func(d Direction, own, peer Endpoint) *Finding {
		if own.Pod == nil || own.Pod.HostNetwork || !peer.Addr.IsValid() {
			return nil
		}
		f := c.find(Peering{Pod: own.Pod, Direction: d, Peer: peer.Addr, PeerPod: peer.Pod, Proto: conn.Proto, Port: conn.Port})
		e.Allowed = e.Allowed && f.Allowed
		return f
	}
	e.Egress = find(Egress, conn.From, conn.To)
	e.Ingress = find(Ingress, conn.To, conn.From)
	return e
}

// ExplainPod returns the policies that decide about a pod: for its ingress, then for its egress.
func ExplainPod(c *Cluster, pod *api.Pod) (all []Isolation) {
	for _, d := range []Direction{Ingress, Egress} {
		all = append(all, c.isolation(d, c.Evaluate(Peering{Pod: pod, Direction: d})))
	}
	return all
}

// isolation converts the part of a Judgement that does not depend on the peer.
func (c *Cluster) isolation(d Direction, j Judgement) Isolation {
	i := Isolation{Direction: d.String()}
	for _, name := range j.Isolates {
		i.IsolatedBy = append(i.IsolatedBy, name.String())
	}
	for _, name := range j.Judges {
		p := c.ClusterPolicies[name]
		i.JudgedBy = append(i.JudgedBy, Judge{Tier: p.Tier.String(), Name: name, Priority: p.Priority})
	}
	return i
}

// find judges one direction of a pod.
func (c *Cluster) find(p Peering) *Finding {
	node := c.Nodes[p.Pod.Node]
	itself := slices.Contains(p.Pod.Addrs, p.Peer)
	ownNode := p.Direction == Egress && node != nil && slices.Contains(node.Addrs, p.Peer)
	p.Exempt = itself || ownNode
	onNode := *c
	onNode.Limited = c.LimitedOn(p.Pod.Node)
	j := onNode.Evaluate(p)
	f := &Finding{Pod: p.Pod.Name.String(), Isolation: c.isolation(p.Direction, j), Peer: p.Peer, Rule: j.Rule, Passed: j.Passed}
	switch {
	case j.Rule != nil && j.Rule.Action == Deny:
		f.Reason = RuleDenies
	case j.Rule != nil:
		f.Reason = RuleAllows
	case itself:
		f.Reason = OwnAddress
	case ownNode:
		f.Reason = OwnNode
	case len(j.Isolates) > 0:
		f.Reason, f.PeerOnly, f.PortOnly = Isolated, j.PeerOnly, j.PortOnly
		for _, n := range j.Isolates {
			if text := onNode.Limited[n]; text != "" {
				f.Limits = append(f.Limits, Exceeded{Policy: n.String(), Limit: text})
			}
		}
	case len(j.Judges) > 0:
		f.Reason = NoRuleDenies
	default:
		f.Reason = NoPolicy
	}
	f.Allowed = f.Reason.Allows()
	return f
}

// Connections returns the connections between a pod and a peer, one for each address of the peer. The peer is
// NAMESPACE/POD or an address. The pod is the sender if d is Egress.
func (c *Cluster) Connections(pod *api.Pod, d Direction, peer string, proto api.Proto, port uint16) (all []Connection, err error) {
	ends, err := c.endpoints(peer)
	for _, end := range ends {
		own := Endpoint{Pod: pod}
		if i := slices.IndexFunc(pod.Addrs, func(a netip.Addr) bool { return a.Is4() == end.Addr.Is4() }); i >= 0 {
			own.Addr = pod.Addrs[i]
		}
		conn := Connection{From: end, To: own, Proto: proto, Port: port}
		if d == Egress {
			conn.From, conn.To = own, end
		}
		all = append(all, conn)
	}
	return all, err
}

// endpoints returns the endpoints that a text names: an address, or all addresses of a pod.
func (c *Cluster) endpoints(text string) (all []Endpoint, err error) {
	if a, err := netip.ParseAddr(text); err == nil {
		end := Endpoint{Addr: a}
		for _, p := range c.Pods {
			if slices.Contains(p.Addrs, a) {
				end.Pod = p
			}
		}
		return []Endpoint{end}, nil
	}
	name, err := api.ParseName(text)
	if err != nil {
		return nil, fmt.Errorf("%q does not name a peer [write NAMESPACE/POD or an address]", text)
	}
	pod := c.Pods[name]
	if pod == nil {
		return nil, fmt.Errorf("there is no pod %v", name)
	}
	if len(pod.Addrs) == 0 {
		return nil, fmt.Errorf("pod %v has no address of its own: it has not started, has finished, or is on its node's network [give the address]", name)
	}
	for _, a := range pod.Addrs {
		all = append(all, Endpoint{Addr: a, Pod: pod})
	}
	return all, nil
}

// MarshalJSON writes the fields of a rule as words, and its String as text.
func (n RuleName) MarshalJSON() ([]byte, error) {
	policy := n.Policy.Name
	if n.Tier == Namespaced {
		policy = n.Policy.String()
	}
	return json.Marshal(struct {
		Policy    string `json:"policy"`
		Tier      string `json:"tier"`
		Direction string `json:"direction"`
		Number    int    `json:"number"` // from 0
		Action    string `json:"action"`
		Title     string `json:"title,omitempty"`
		Text      string `json:"text"`
	}{policy, cmp.Or(n.Tier.String(), "NetworkPolicy"), n.Direction.String(), n.Number, n.Action.String(), n.Title, n.String()})
}
