package inspect

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/kube"
	kubepolicy "github.com/fairway-net/fairway/internal/kube/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// A policyQuestion is what the command is asked about a pod.
type policyQuestion struct{ from, to, port string }

// judge reads the API server and answers.
func judge(ctx context.Context, a *agent.Tool, w io.Writer, subject string, q policyQuestion) error {
	name, err := api.ParseName(subject)
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
	cluster, err := kubepolicy.Once(ctx, kube.Config{Log: a.Log, Client: client, Custom: custom, NodeName: a.Config.NodeName})
	if err != nil {
		return err
	}
	pod := cluster.Pods[name]
	if pod == nil {
		return fmt.Errorf("there is no pod %v [kubectl get pods -n %s lists those that are]", name, name.Namespace)
	}
	if pod.HostNetwork {
		_, err := fmt.Fprintf(w, "%v is on its node's network: NetworkPolicies do not see it\n", name)
		return err
	}
	if q.from == "" && q.to == "" {
		for _, d := range []networkpolicy.Direction{networkpolicy.Ingress, networkpolicy.Egress} {
			cluster.WriteIsolation(w, pod, d)
		}
		return nil
	}
	d, peer := networkpolicy.Ingress, q.from
	if q.to != "" {
		d, peer = networkpolicy.Egress, q.to
	}
	allowed, err := cluster.WriteJudgements(w, networkpolicy.Question{Pod: pod, Direction: d, Peer: peer, Proto: proto, Port: port})
	if err == nil && !allowed {
		err = command.ExitError(1)
	}
	return err
}

// parsePort reads "80", "53/UDP" or nothing.
func parsePort(text string) (proto api.Proto, port uint16, err error) {
	if text == "" {
		return 0, 0, nil
	}
	number, name, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	if err == nil {
		proto, err = api.ParseProto(name)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("--port: %q is not a port [write 80, or 53/UDP]", text)
	}
	return proto, uint16(n), nil
}
