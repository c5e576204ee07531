package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/policy"
	"github.com/fairway-net/fairway/internal/service"
)

func newPolicy(e env) *cobra.Command {
	c := &cobra.Command{
		Use:   "policy NAMESPACE/POD",
		Short: "Say what NetworkPolicies allow a pod, by which policy and rule",
		Long: `Say what NetworkPolicies allow a pod, by which policy and rule.

With --from or --to, what they say of packets from or to a peer: a pod (NAMESPACE/POD) or an
address, on --port. Both ends of a connection between pods are judged. Reads the API server
once: all pods, namespaces, NetworkPolicies and ClusterNetworkPolicies. The exit status is 1 if it is denied.`,
		Example: `  fairway policy default/web
  fairway policy default/web --from default/client --port 80
  fairway policy default/web --to 203.0.113.7 --port 443/TCP`,
		Args: cobra.ExactArgs(1),
	}
	var q policyQuestion
	c.Flags().StringVar(&q.from, "from", "", "a `peer` that sends to the pod: NAMESPACE/POD, or an address")
	c.Flags().StringVar(&q.to, "to", "", "a `peer` that the pod sends to: NAMESPACE/POD, or an address")
	c.Flags().StringVar(&q.port, "port", "", "the `port` that is sent to, as 80, 53/UDP; without it rules for some ports do not count")
	asAgent(c, e, func(ctx context.Context, a *agent, args []string) error {
		return a.judge(ctx, e.stdout, args[0], q)
	})
	return c
}

// A policyQuestion is what the command is asked about a pod.
type policyQuestion struct{ from, to, port string }

// judge reads the API server and answers.
func (a *agent) judge(ctx context.Context, w io.Writer, subject string, q policyQuestion) error {
	name, err := service.ParseName(subject)
	if err != nil {
		return fmt.Errorf("%q does not name a pod [write NAMESPACE/POD]", subject)
	}
	if q.from != "" && q.to != "" {
		return fmt.Errorf("--from and --to are two questions [give one]")
	}
	proto, port, err := parsePort(q.port)
	if err != nil {
		return err
	}
	client, err := kube.Connect(a.cfg.Connection(userAgent))
	if err != nil {
		return err
	}
	custom, err := kube.ConnectCustom(a.cfg.Connection(userAgent))
	if err != nil {
		return err
	}
	cluster, err := kube.OncePolicies(ctx, kube.Config{Log: a.log, Client: client, Custom: custom, NodeName: a.cfg.NodeName})
	if err != nil {
		return err
	}
	pod := cluster.Pods[name]
	if pod == nil {
		return fmt.Errorf("there is no pod %v", name)
	}
	if pod.HostNetwork {
		_, err := fmt.Fprintf(w, "%v is on its node's network: NetworkPolicies do not see it\n", name)
		return err
	}
	if q.from == "" && q.to == "" {
		for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
			writeIsolation(w, cluster, d, cluster.Evaluate(policy.Peering{Pod: pod, Direction: d}))
		}
		return nil
	}
	d, peer := policy.Ingress, q.from
	if q.to != "" {
		d, peer = policy.Egress, q.to
	}
	allowed, err := writeJudgements(w, cluster, pod, d, peer, proto, port)
	if err == nil && !allowed {
		err = exitError(1)
	}
	return err
}

// parsePort reads "80", "53/UDP" or nothing.
func parsePort(text string) (proto service.Proto, port uint16, err error) {
	if text == "" {
		return 0, 0, nil
	}
	number, name, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err == nil {
		proto, err = service.ParseProto(name)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("--port: %q is not a port [write 80, or 53/UDP]", text)
	}
	return proto, uint16(n), nil
}

// writeIsolation says who isolates or judges a pod.
func writeIsolation(w io.Writer, c *policy.Cluster, d policy.Direction, j policy.Judgement) {
	text := "not isolated, all is allowed"
	if len(j.Isolates) > 0 {
		text = "isolated by " + names(j.Isolates)
	}
	for _, name := range j.Judges {
		p := c.ClusterPolicies[name]
		text += fmt.Sprintf("; judged by %v %s (priority %d)", p.Tier, name, p.Priority)
	}
	fmt.Fprintf(w, "%v: %s\n", d, text)
}

// writeJudgements writes what each end of a connection says.
func writeJudgements(w io.Writer, c *policy.Cluster, pod *policy.Pod, d policy.Direction, peer string, proto service.Proto, port uint16) (allowed bool, err error) {
	var other *policy.Pod
	addrs := []netip.Addr{}
	if a, err := netip.ParseAddr(peer); err == nil {
		addrs = append(addrs, a)
		for _, p := range c.Pods {
			if slices.Contains(p.Addrs, a) {
				other = p
			}
		}
	} else {
		name, err := service.ParseName(peer)
		if err != nil {
			return false, fmt.Errorf("peer %q: write NAMESPACE/POD or an address", peer)
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
		one := writeJudgement(w, c, policy.Peering{Pod: pod, Direction: d, Peer: a, PeerPod: other, Proto: proto, Port: port})
		allowed = allowed && one
	}
	if other != nil && other != pod {
		for _, a := range pod.Addrs {
			if len(addrs) == 1 && a.Is4() != addrs[0].Is4() {
				continue
			}
			one := writeJudgement(w, c, policy.Peering{Pod: other, Direction: 1 - d, Peer: a, PeerPod: pod, Proto: proto, Port: port})
			allowed = allowed && one
		}
	}
	return allowed, nil
}

// writeJudgement writes what one end says of an address, and what would allow it.
func writeJudgement(w io.Writer, c *policy.Cluster, p policy.Peering) bool {
	what := fmt.Sprintf("%v of %v, to %v", p.Direction, p.Pod.Name, p.Peer)
	if p.Direction == policy.Ingress {
		what = fmt.Sprintf("%v of %v, from %v", p.Direction, p.Pod.Name, p.Peer)
	}
	self := slices.Contains(p.Pod.Addrs, p.Peer)
	node := p.Direction == policy.Egress && c.Nodes[p.Pod.Node] != nil && slices.Contains(c.Nodes[p.Pod.Node].Addrs, p.Peer)
	p.Exempt = self || node
	c.Limited = c.LimitedOn(p.Pod.Node)
	j := c.Evaluate(p)
	for _, r := range j.Passed {
		what += fmt.Sprintf(" (after %v)", r)
	}
	switch {
	case j.Rule != nil && j.Rule.Action == policy.Deny:
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
		fmt.Fprintf(w, "%s: denied, isolated by %s\n", what, names(j.Isolates))
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

func names(all []service.Name) string {
	var texts []string
	for _, n := range all {
		texts = append(texts, n.String())
	}
	return strings.Join(texts, ", ")
}
