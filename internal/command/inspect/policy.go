package inspect

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/policy"
	"github.com/fairway-net/fairway/internal/service"
)

// NewPolicy builds `fairway policy`.
func NewPolicy(e command.Env) *cobra.Command {
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
	agent.As(c, e, func(ctx context.Context, a *agent.Tool, args []string) error {
		return judge(ctx, a, e.Stdout, args[0], q)
	})
	return c
}

// A policyQuestion is what the command is asked about a pod.
type policyQuestion struct{ from, to, port string }

// judge reads the API server and answers.
func judge(ctx context.Context, a *agent.Tool, w io.Writer, subject string, q policyQuestion) error {
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
	client, custom, err := kube.ConnectBoth(a.Connection())
	if err != nil {
		return err
	}
	cluster, err := kube.OncePolicies(ctx, kube.Config{Log: a.Log, Client: client, Custom: custom, NodeName: a.Config.NodeName})
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
			cluster.WriteIsolation(w, pod, d)
		}
		return nil
	}
	d, peer := policy.Ingress, q.from
	if q.to != "" {
		d, peer = policy.Egress, q.to
	}
	allowed, err := cluster.WriteJudgements(w, policy.Question{Pod: pod, Direction: d, Peer: peer, Proto: proto, Port: port})
	if err == nil && !allowed {
		err = command.ExitError(1)
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
