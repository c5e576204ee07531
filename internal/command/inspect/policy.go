package inspect

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/kube"
	kubepolicy "github.com/fairway-net/fairway/internal/kube/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// A policyQuestion holds the flags of `fairway policy`. Without from and to it asks which policies decide about the pod.
type policyQuestion struct{ namespace, from, to, port string }

// A policyAnswer is what `fairway policy` found about a pod. Isolation is the answer without a peer, Connections the
// answer about one: a connection for each of the peer's addresses, or for each endpoint of a Service.
type policyAnswer struct {
	Pod string `json:"pod"`
	// NotEnforced: the agents do not enforce policies, so that what they deny passes. Empty: the agents enforce them, or
	// that is not known.
	NotEnforced string `json:"notEnforced,omitempty"`
	// HostNetwork: the pod is on its node's network, so that no policy sees it.
	HostNetwork bool `json:"hostNetwork,omitempty"`
	// Service is the Service that the question names. Its endpoints' addresses and ports are judged.
	Service     string                      `json:"service,omitempty"`
	Isolation   []networkpolicy.Isolation   `json:"isolation,omitempty"`
	Connections []networkpolicy.Explanation `json:"connections,omitempty"`
	noPort      bool                        // the question names no port
}

// judge reads the API server and answers. denied says that a policy that is enforced denies one of the connections.
func judge(ctx context.Context, a *agent.Tool, subject string, q policyQuestion) (answer policyAnswer, denied bool, err error) {
	name, err := q.podName(subject)
	if err != nil {
		return answer, false, err
	}
	if q.from != "" && q.to != "" {
		return answer, false, fmt.Errorf("--from and --to are two questions [give one]")
	}
	proto, port, err := parsePort(q.port)
	if err != nil {
		return answer, false, err
	}
	client, custom, err := kube.ConnectBoth(a.Connection())
	if err != nil {
		return answer, false, err
	}
	notEnforced, err := a.PoliciesNotEnforced(ctx)
	if err != nil {
		return answer, false, err
	}
	cluster, err := kubepolicy.Once(ctx, kube.Config{Log: a.Log, Client: client, Custom: custom, NodeName: a.Config.NodeName,
		AllNodes: a.Config.ConnectsPods(), PodNetwork: a.Config.ConnectsPods(), ClusterCIDRs: a.Config.ClusterCIDRs})
	if err != nil && notEnforced != "" { // such an agent may not read policies either
		return answer, false, fmt.Errorf("NetworkPolicies are not enforced: %s", notEnforced)
	}
	if err != nil {
		return answer, false, err
	}
	service, err := kube.FindService(ctx, client, q.to)
	if err != nil {
		return answer, false, err
	}
	if service == nil {
		answer, denied, err = explainPolicies(cluster, name, q, proto, port)
	} else if to, why := kube.Destinations(ctx, client, service, proto, port); why != nil {
		err = why
	} else {
		answer, denied, err = explainService(cluster, name, to)
		answer.Service = service.Namespace + "/" + service.Name
	}
	answer.NotEnforced = notEnforced
	return answer, denied && notEnforced == "", err
}

// podName reads POD in the namespace of -n, or NAMESPACE/POD.
func (q policyQuestion) podName(subject string) (api.Name, error) {
	if q.namespace != "" && !strings.Contains(subject, "/") {
		subject = q.namespace + "/" + subject
	}
	name, err := api.ParseName(subject)
	if err != nil {
		return name, fmt.Errorf("%q does not name a pod [write NAMESPACE/POD, or -n NAMESPACE]", subject)
	}
	return name, nil
}

// podOf returns a pod of the cluster, and the beginning of the answer about it.
func podOf(cluster *networkpolicy.Cluster, name api.Name) (*api.Pod, policyAnswer, error) {
	answer := policyAnswer{Pod: name.String()}
	pod := cluster.Pods[name]
	if pod == nil {
		return nil, answer, fmt.Errorf("there is no pod %v [kubectl get pods -n %s lists those that are]", name, name.Namespace)
	}
	answer.HostNetwork = pod.HostNetwork
	return pod, answer, nil
}

// explainService answers about the connections of a pod to the endpoints of a Service.
func explainService(cluster *networkpolicy.Cluster, name api.Name, to []kube.Destination) (answer policyAnswer, denied bool, err error) {
	pod, answer, err := podOf(cluster, name)
	if err != nil || pod.HostNetwork {
		return answer, false, err
	}
	for _, d := range to {
		connections, err := cluster.Connections(pod, networkpolicy.Egress, d.Addr.String(), d.Proto, d.To)
		if err != nil {
			return answer, false, err
		}
		denied = answer.add(cluster, connections) || denied
	}
	return answer, denied, nil
}

// explainPolicies answers from the objects of a cluster.
func explainPolicies(cluster *networkpolicy.Cluster, name api.Name, q policyQuestion, proto api.Proto, port uint16) (answer policyAnswer, denied bool, err error) {
	pod, answer, err := podOf(cluster, name)
	switch {
	case err != nil || pod.HostNetwork:
		return answer, false, err
	case q.from == "" && q.to == "":
		answer.Isolation = networkpolicy.ExplainPod(cluster, pod)
		return answer, false, nil
	}
	answer.noPort = q.port == ""
	d, peer := networkpolicy.Ingress, q.from
	if q.to != "" {
		d, peer = networkpolicy.Egress, q.to
	}
	connections, err := cluster.Connections(pod, d, peer, proto, port)
	return answer, answer.add(cluster, connections), err
}

// add explains connections, and reports whether one of them is denied.
func (p *policyAnswer) add(cluster *networkpolicy.Cluster, connections []networkpolicy.Connection) (denied bool) {
	for _, c := range connections {
		e := networkpolicy.Explain(cluster, c)
		denied = denied || !e.Allowed
		p.Connections = append(p.Connections, e)
	}
	return denied
}

// WriteTable implements output.Value.
func (p policyAnswer) WriteTable(w io.Writer, _ bool) error {
	if p.NotEnforced != "" {
		if _, err := fmt.Fprintf(w, "not enforced: %s\n", p.NotEnforced); err != nil {
			return err
		}
	}
	if p.HostNetwork {
		_, err := fmt.Fprintf(w, "%s is on its node's network: NetworkPolicies do not see it\n", p.Pod)
		return err
	}
	var text strings.Builder
	if p.Service != "" {
		fmt.Fprintf(&text, "Service %s: policies see the addresses and ports of its endpoints\n", p.Service)
	}
	for _, i := range p.Isolation {
		fmt.Fprintf(&text, "%s: %s\n", i.Direction, isolationText(i))
	}
	var findings []*networkpolicy.Finding
	for _, c := range p.Connections {
		findings = append(findings, c.Egress, c.Ingress)
	}
	// The pod of the question comes first, with all of its addresses.
	for _, own := range []bool{true, false} {
		for _, f := range findings {
			if f != nil && (f.Pod == p.Pod) == own {
				writeFinding(&text, f, p.noPort)
			}
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func isolationText(i networkpolicy.Isolation) string {
	text := "not isolated, all is allowed"
	if len(i.IsolatedBy) > 0 {
		text = "isolated by " + strings.Join(i.IsolatedBy, ", ")
	}
	for _, j := range i.JudgedBy {
		text += fmt.Sprintf("; judged by %s %s (priority %d)", j.Tier, j.Name, j.Priority)
	}
	return text
}

// writeFinding writes the decision of one direction of a pod. Below a denial it writes the rules that nearly allow.
func writeFinding(w io.Writer, f *networkpolicy.Finding, noPort bool) {
	towards := "from"
	if f.Direction == networkpolicy.Egress.String() {
		towards = "to"
	}
	fmt.Fprintf(w, "%s of %s, %s %v", f.Direction, f.Pod, towards, f.Peer)
	for _, r := range f.Passed {
		fmt.Fprintf(w, " (after %v)", r)
	}
	switch f.Reason {
	case networkpolicy.RuleDenies:
		fmt.Fprintf(w, ": denied by %v\n", *f.Rule)
	case networkpolicy.RuleAllows:
		fmt.Fprintf(w, ": allowed by %v\n", *f.Rule)
	case networkpolicy.Isolated:
		fmt.Fprintf(w, ": denied, isolated by %s\n", strings.Join(f.IsolatedBy, ", "))
	default:
		fmt.Fprintf(w, ": allowed, %s\n", allowedTexts[f.Reason])
	}
	for _, l := range f.Limits {
		fmt.Fprintf(w, "  %s: %s\n", l.Policy, l.Limit)
	}
	portText := "includes the peer, but not the port"
	if noPort {
		portText = "includes the peer, for some ports [name one with --port]"
	}
	for _, r := range f.PeerOnly {
		fmt.Fprintf(w, "  %v %s\n", r, portText)
	}
	for _, r := range f.PortOnly {
		fmt.Fprintf(w, "  %v includes the port, but not the peer\n", r)
	}
}

// allowedTexts are the reasons that no rule gives.
var allowedTexts = map[networkpolicy.Reason]string{
	networkpolicy.OwnAddress:   "a pod reaches itself",
	networkpolicy.OwnNode:      "NetworkPolicies isolate no pod from its node",
	networkpolicy.NoRuleDenies: "no rule denies it",
	networkpolicy.NoPolicy:     "no policy isolates it",
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
