package networkpolicy

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// WriteIsolation says who isolates or judges a pod.
func (c *Cluster) WriteIsolation(w io.Writer, pod *api.Pod, d Direction) {
	j := c.Evaluate(Peering{Pod: pod, Direction: d})
	text := "not isolated, all is allowed"
	if len(j.Isolates) > 0 {
		text = "isolated by " + namesOf(j.Isolates)
	}
	for _, name := range j.Judges {
		p := c.ClusterPolicies[name]
		text += fmt.Sprintf("; judged by %v %s (priority %d)", p.Tier, name, p.Priority)
	}
	fmt.Fprintf(w, "%v: %s\n", d, text)
}

// A Question is about packets from a peer to a pod, or from the pod to the peer.
type Question struct {
	Pod       *api.Pod
	Direction Direction
	Peer      string // NAMESPACE/POD, or an address
	Proto     api.Proto
	Port      uint16 // 0: rules for some ports do not count
}

// WriteJudgements writes what each end of a connection says, and returns whether both allow it.
func (c *Cluster) WriteJudgements(w io.Writer, q Question) (allowed bool, err error) {
	var other *api.Pod
	addrs := []netip.Addr{}
	if a, err := netip.ParseAddr(q.Peer); err == nil {
		addrs = append(addrs, a)
		for _, p := range c.Pods {
			if slices.Contains(p.Addrs, a) {
				other = p
			}
		}
	} else {
		name, err := api.ParseName(q.Peer)
		if err != nil {
			return false, fmt.Errorf("%q does not name a peer [write NAMESPACE/POD or an address]", q.Peer)
		}
		if other = c.Pods[name]; other == nil {
			return false, fmt.Errorf("there is no pod %v", name)
		}
		if len(other.Addrs) == 0 {
			return false, fmt.Errorf("pod %v has no address of its own: it has not started, has finished, or is on its node's network [give the address]", name)
		}
		addrs = other.Addrs
	}
	allowed = true
	for _, a := range addrs {
		one := c.writeJudgement(w, Peering{Pod: q.Pod, Direction: q.Direction, Peer: a, PeerPod: other, Proto: q.Proto, Port: q.Port})
		allowed = allowed && one
	}
	if other != nil && other != q.Pod {
		for _, a := range q.Pod.Addrs {
			if len(addrs) == 1 && a.Is4() != addrs[0].Is4() {
				continue
			}
			one := c.writeJudgement(w, Peering{Pod: other, Direction: 1 - q.Direction, Peer: a, PeerPod: q.Pod, Proto: q.Proto, Port: q.Port})
			allowed = allowed && one
		}
	}
	return allowed, nil
}

// writeJudgement writes what one end says of an address, and what would allow it.
func (c *Cluster) writeJudgement(w io.Writer, p Peering) bool {
	what := fmt.Sprintf("%v of %v, to %v", p.Direction, p.Pod.Name, p.Peer)
	if p.Direction == Ingress {
		what = fmt.Sprintf("%v of %v, from %v", p.Direction, p.Pod.Name, p.Peer)
	}
	self := slices.Contains(p.Pod.Addrs, p.Peer)
	node := p.Direction == Egress && c.Nodes[p.Pod.Node] != nil && slices.Contains(c.Nodes[p.Pod.Node].Addrs, p.Peer)
	p.Exempt = self || node
	c.Limited = c.LimitedOn(p.Pod.Node)
	j := c.Evaluate(p)
	for _, r := range j.Passed {
		what += fmt.Sprintf(" (after %v)", r)
	}
	switch {
	case j.Rule != nil && j.Rule.Action == Deny:
		fmt.Fprintf(w, "%s: denied by %v\n", what, *j.Rule)
	case j.Rule != nil:
		fmt.Fprintf(w, "%s: allowed by %v\n", what, *j.Rule)
	case self:
		fmt.Fprintf(w, "%s: allowed, a pod reaches itself\n", what)
	case node:
		fmt.Fprintf(w, "%s: allowed, NetworkPolicies isolate no pod from its node\n", what)
	case len(j.Isolates) == 0 && len(j.Judges) > 0:
		fmt.Fprintf(w, "%s: allowed, no rule denies it\n", what)
	case len(j.Isolates) == 0:
		fmt.Fprintf(w, "%s: allowed, no policy isolates it\n", what)
	default:
		fmt.Fprintf(w, "%s: denied, isolated by %s\n", what, namesOf(j.Isolates))
		for _, n := range j.Isolates {
			if text := c.Limited[n]; text != "" {
				fmt.Fprintf(w, "  %v: %s\n", n, text)
			}
		}
		for _, r := range j.PortOnly {
			fmt.Fprintf(w, "  %v includes the peer, but not the port\n", r)
		}
		for _, r := range j.PeerOnly {
			fmt.Fprintf(w, "  %v includes the port, but not the peer\n", r)
		}
	}
	return j.Allowed()
}

func namesOf(all []api.Name) string {
	var texts []string
	for _, n := range all {
		texts = append(texts, n.String())
	}
	return strings.Join(texts, ", ")
}
