package networkpolicy

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// The specs of policy.networking.k8s.io/v1alpha2, with the names of the API's fields.

type clusterPolicySpec struct {
	Tier     string              `json:"tier"`
	Priority int                 `json:"priority"`
	Subject  clusterPeer         `json:"subject"`
	Ingress  []clusterPolicyRule `json:"ingress"`
	Egress   []clusterPolicyRule `json:"egress"`
}

type clusterPolicyRule struct {
	Name      string            `json:"name"`
	Action    string            `json:"action"`
	From      []clusterPeer     `json:"from"`
	To        []clusterPeer     `json:"to"`
	Protocols []clusterProtocol `json:"protocols"`
}

type clusterPeer struct {
	Namespaces *metav1.LabelSelector `json:"namespaces"`
	Pods       *struct {
		NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
		PodSelector       metav1.LabelSelector `json:"podSelector"`
	} `json:"pods"`
	Nodes       *metav1.LabelSelector `json:"nodes"`
	Networks    []string              `json:"networks"`
	DomainNames []string              `json:"domainNames"`
}

type clusterProtocol struct {
	TCP                  *clusterPorts `json:"tcp"`
	UDP                  *clusterPorts `json:"udp"`
	SCTP                 *clusterPorts `json:"sctp"`
	DestinationNamedPort string        `json:"destinationNamedPort"`
}

type clusterPorts struct {
	DestinationPort *struct {
		Number int `json:"number"`
		Range  *struct {
			Start int `json:"start"`
			End   int `json:"end"`
		} `json:"range"`
	} `json:"destinationPort"`
}

// A clusterConverter notes the parts of one object that it does not understand.
type clusterConverter struct {
	where   string
	bad     []string
	invalid bool // some part is not in a newer API either
}

func (c *clusterConverter) problem(format string, args ...any) {
	c.bad = append(c.bad, c.where+": "+fmt.Sprintf(format, args...))
}

// ConvertClusterPolicy converts a ClusterNetworkPolicy to the model. A part that is not understood must not open
// traffic that the author meant to close: an Accept rule then accepts less, and a Deny or Pass rule denies everything,
// as the API demands for unknown peers. Without a valid subject the policy selects no pod, because a policy that denies
// for all pods would stop the cluster.
func ConvertClusterPolicy(o *unstructured.Unstructured) *networkpolicy.ClusterPolicy {
	p := &networkpolicy.ClusterPolicy{Name: o.GetName(), UID: string(o.GetUID())}
	var spec clusterPolicySpec
	var unread kube.Problems
	if kube.ReadSpec(o, &spec, &unread); len(unread) > 0 {
		p.Problems, p.Invalid = []string{unread[0].Message + ": it selects no pod"}, true
		return p
	}
	c := &clusterConverter{where: "subject"}
	p.Priority = spec.Priority
	switch spec.Tier {
	case "Admin":
		p.Tier = networkpolicy.Admin
	case "Baseline":
		p.Tier = networkpolicy.Baseline
	default:
		p.Problems = []string{fmt.Sprintf("tier %q is not known: it selects no pod", spec.Tier)}
		return p
	}
	peers, ok := c.peers([]clusterPeer{spec.Subject})
	if !ok || len(peers) != 1 || peers[0].Namespaces == nil {
		p.Problems, p.Invalid = []string{"its subject is not understood: it selects no pod"}, c.invalid
		return p
	}
	p.Subject = peers[0]
	for d, rules := range map[networkpolicy.Direction][]clusterPolicyRule{networkpolicy.Ingress: spec.Ingress, networkpolicy.Egress: spec.Egress} {
		for i := range rules {
			c.where = fmt.Sprintf("%v[%d]", d, i)
			p.Rules[d] = append(p.Rules[d], c.rule(&rules[i]))
		}
	}
	p.Problems, p.Invalid = c.bad, c.invalid
	return p
}

// rule reads a rule. The API server has checked that the rule has peers.
func (c *clusterConverter) rule(o *clusterPolicyRule) networkpolicy.ClusterRule {
	r := networkpolicy.ClusterRule{Name: o.Name}
	switch o.Action {
	case "Accept":
	case "Pass":
		r.Action = networkpolicy.Pass
	default:
		if r.Action = networkpolicy.Deny; o.Action != "Deny" {
			c.problem("action %q is not known: it denies", o.Action)
		}
	}
	all := slices.Concat(o.From, o.To)
	peers, ok := c.peers(all)
	if slices.ContainsFunc(all, func(p clusterPeer) bool { return len(p.DomainNames) > 0 }) && r.Action != networkpolicy.Accept {
		ok = false // the API has names only in rules that accept
	}
	if !ok && r.Action == networkpolicy.Accept {
		c.problem("a peer is not understood: it accepts nothing")
		return networkpolicy.ClusterRule{Name: o.Name, Rule: networkpolicy.Rule{NoPeer: true}}
	}
	if !ok {
		c.problem("a peer is not understood: it denies everything")
		return networkpolicy.ClusterRule{Name: o.Name, Action: networkpolicy.Deny}
	}
	r.Peers, r.NoPeer = peers, len(peers) == 0
	ports, ok := c.ports(o.Protocols)
	if !ok && r.Action != networkpolicy.Accept {
		c.problem("a protocol is not understood: it denies on all ports")
		r.Action = networkpolicy.Deny
		return r
	}
	if !ok {
		c.problem("a protocol is not understood: it accepts nothing by that")
	}
	r.Ports, r.NoPort = ports, len(o.Protocols) > 0 && len(ports) == 0
	return r
}

// peers reads the peers of a rule. ok is false if at least one peer is not understood.
func (c *clusterConverter) peers(all []clusterPeer) (out []networkpolicy.Peer, ok bool) {
	ok = true
	for i := range all {
		o := &all[i]
		var bad kube.Problems
		selector := func(s *metav1.LabelSelector) *api.Selector {
			l := kube.ReadSelector(c.where, s, &bad)
			return &l
		}
		switch {
		case o.Namespaces != nil:
			out = append(out, networkpolicy.Peer{Namespaces: selector(o.Namespaces)})
		case o.Pods != nil:
			out = append(out, networkpolicy.Peer{Namespaces: selector(&o.Pods.NamespaceSelector), Pods: selector(&o.Pods.PodSelector)})
		case o.Nodes != nil:
			out = append(out, networkpolicy.Peer{Nodes: selector(o.Nodes)})
		case len(o.Networks) > 0:
			for _, text := range o.Networks {
				cidr, valid := kube.ParsePrefix(text)
				ok, c.invalid = ok && valid, c.invalid || !valid
				out = append(out, networkpolicy.Peer{Block: &networkpolicy.Block{CIDR: cidr}})
			}
		case len(o.DomainNames) > 0:
			c.problem("domainNames are not supported: they match nothing")
		default:
			ok = false
		}
		ok, c.invalid = ok && len(bad) == 0, c.invalid || len(bad) > 0
	}
	return out, ok
}

// ports reads the ports of a rule. ok is false if at least one port is not understood.
func (c *clusterConverter) ports(all []clusterProtocol) (out []networkpolicy.Port, ok bool) {
	ok = true
	for _, o := range all {
		proto, ports := api.TCP, o.TCP
		if o.UDP != nil {
			proto, ports = api.UDP, o.UDP
		}
		if o.SCTP != nil {
			proto, ports = api.SCTP, o.SCTP
		}
		switch {
		case o.DestinationNamedPort != "":
			// A named port matches every protocol.
			for _, p := range []api.Proto{api.TCP, api.UDP, api.SCTP} {
				out = append(out, networkpolicy.Port{Proto: p, Name: o.DestinationNamedPort})
			}
		case ports == nil:
			ok = false
		case ports.DestinationPort == nil:
			out = append(out, networkpolicy.Port{Proto: proto, Last: 65535})
		default:
			first, last := ports.DestinationPort.Number, ports.DestinationPort.Number
			if r := ports.DestinationPort.Range; r != nil {
				first, last = r.Start, r.End
			}
			if first < 1 || last < first || last > 65535 {
				ok, c.invalid = false, true
				continue
			}
			out = append(out, networkpolicy.Port{Proto: proto, First: uint16(first), Last: uint16(last)})
		}
	}
	return out, ok
}

// A labelledNode is a node by which policies select peers, before its claims are checked.
type labelledNode struct {
	kube.Node
	labels map[string]string
}

// convertPolicyNode converts a Node. Its host names are left out, because they match no peer.
func convertPolicyNode(o *corev1.Node) *labelledNode {
	return &labelledNode{kube.ConvertNode(o), o.Labels}
}

// accepted returns the node as the model has it, with the addresses that count.
func (n *labelledNode) accepted(nodes *api.AcceptedNodes) *networkpolicy.Node {
	return &networkpolicy.Node{Name: n.Name, Labels: n.labels, Addrs: nodes.Owned(n.Name)}
}
