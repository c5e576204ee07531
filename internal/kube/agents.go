package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/text"
)

// agentLabel and gatewayLabel are on the pods of the agents and of the gateway in deploy/.
const (
	agentLabel   = "app.kubernetes.io/name=fairway-agent"
	gatewayLabel = "app.kubernetes.io/name=fairway-gateway"
)

// An AgentPod is the agent's pod of a node.
type AgentPod struct {
	Node, Namespace, Name string // Name is empty if the node has no agent
	State                 string // "Running", "CrashLoopBackOff", "Pending", "none", …
	Running               bool
	Restarts              int
	Kubelet               string // version
	ControlPlane          bool   // the node has the role control-plane
	Drained               bool   // the node has the label that keeps load balancers off it
	Unavailable           string // why the node's condition NetworkUnavailable is true; empty: it is not
	port                  string // of its health server
}

// Agents are the agents of a cluster, seen with a kubeconfig.
type Agents struct {
	client     kubernetes.Interface
	custom     dynamic.Interface
	namespace  string
	connection Connection
}

// ConnectAgents makes a client. It sends nothing yet.
func ConnectAgents(c Connection, namespace string) (*Agents, error) {
	client, custom, err := ConnectBoth(c)
	if err != nil {
		return nil, err
	}
	return &Agents{client, custom, namespace, c}, nil
}

// List returns the agent of each node, sorted by node. It costs two lists, which the API
// server answers from its cache.
func (a *Agents) List(ctx context.Context) ([]AgentPod, error) {
	const instead = " (kubectl fairway status, or --kubeconfig FILE); for the pod's own node, fairway status without flags"
	cached := metav1.ListOptions{ResourceVersion: "0"}
	nodes, err := a.client.CoreV1().Nodes().List(ctx, cached)
	if err != nil {
		return nil, AdviseForbidden(fmt.Errorf("list nodes: %w", text.RequestError(err)), instead)
	}
	cached.LabelSelector = agentLabel
	pods, err := a.client.CoreV1().Pods(a.namespace).List(ctx, cached)
	if err != nil {
		return nil, AdviseForbidden(fmt.Errorf("list the agents' pods: %w", text.RequestError(err)), instead)
	}
	of := map[string]AgentPod{}
	for i := range pods.Items {
		p := agentPod(&pods.Items[i])
		if was, ok := of[p.Node]; !ok || !was.Running {
			of[p.Node] = p
		}
	}
	all := make([]AgentPod, 0, len(nodes.Items))
	for i := range nodes.Items {
		name := nodes.Items[i].Name
		p, ok := of[name]
		if !ok {
			p = AgentPod{Node: name, State: "none"}
		}
		_, p.ControlPlane = nodes.Items[i].Labels["node-role.kubernetes.io/control-plane"]
		p.Kubelet = nodes.Items[i].Status.NodeInfo.KubeletVersion
		p.Drained, p.Unavailable = labelledOff(&nodes.Items[i]), NetworkUnavailable(&nodes.Items[i])
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b AgentPod) int { return cmp.Compare(a.Node, b.Node) })
	return all, nil
}

// AgentOn returns the running agent of a node, from Agents.List. An error says why there is none.
func AgentOn(pods []AgentPod, node string) (AgentPod, error) {
	i := slices.IndexFunc(pods, func(p AgentPod) bool { return p.Node == node })
	switch {
	case i < 0:
		return AgentPod{}, fmt.Errorf("there is no node %q [kubectl get nodes lists them]", node)
	case pods[i].Name == "":
		return AgentPod{}, fmt.Errorf("no agent runs on %s [fairway status]", node)
	case !pods[i].Running:
		return AgentPod{}, fmt.Errorf("the agent on %s is %s [fairway status]", node, pods[i].State)
	}
	return pods[i], nil
}

// ErrNoProxy is the error of a user who may not ask agents through the API server. It says nothing about the agents.
var ErrNoProxy = errors.New("the agents were not asked: your user lacks the right to get pods/proxy in their namespace [use an administrator's kubeconfig; on a node, fairway status needs no such right]")

// AdviseForbidden adds advice to an error if the API server refused a right, as it does in an agent's pod.
func AdviseForbidden(err error, instead string) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%w [a Fairway pod's service account lacks this right: use your kubeconfig%s]", err, instead)
}

func agentPod(o *corev1.Pod) AgentPod {
	p := AgentPod{Node: o.Spec.NodeName, Namespace: o.Namespace, Name: o.Name, State: string(o.Status.Phase), port: "10256"}
	p.Running = o.Status.Phase == corev1.PodRunning && o.DeletionTimestamp == nil
	if o.DeletionTimestamp != nil {
		p.State = "Terminating"
	}
	for _, c := range o.Status.ContainerStatuses {
		p.Restarts += int(c.RestartCount)
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			p.State, p.Running = w.Reason, false
		}
		if t := c.State.Terminated; t != nil {
			p.State, p.Running = cmp.Or(t.Reason, "Terminated"), false
		}
	}
	for _, c := range o.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name == "healthz" {
				p.port = strconv.Itoa(int(port.ContainerPort))
			}
		}
	}
	return p
}

// Gateways returns the gateway's pods, sorted by name. There are none if the gateway is not installed.
func (a *Agents) Gateways(ctx context.Context) ([]AgentPod, error) {
	pods, err := a.client.CoreV1().Pods(a.namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0", LabelSelector: gatewayLabel})
	if err != nil {
		return nil, fmt.Errorf("list the gateway's pods: %w", text.RequestError(err))
	}
	all := make([]AgentPod, 0, len(pods.Items))
	for i := range pods.Items {
		p := agentPod(&pods.Items[i])
		p.port = "9121"
		for _, c := range pods.Items[i].Spec.Containers {
			for _, port := range c.Ports {
				if port.Name == "metrics" {
					p.port = strconv.Itoa(int(port.ContainerPort))
				}
			}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b AgentPod) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// Metrics returns the metrics of a gateway's pod, at most limit bytes. The API server forwards this one request.
func (a *Agents) Metrics(ctx context.Context, p AgentPod, limit int64) ([]byte, error) {
	stream, err := a.client.CoreV1().Pods(p.Namespace).ProxyGet("http", p.Name, p.port, "metrics", nil).Stream(ctx)
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("your user lacks the right to get pods/proxy in %s", p.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the pod through the API server: %w", text.RequestError(err))
	}
	defer stream.Close()
	data, err := io.ReadAll(io.LimitReader(stream, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read the pod's metrics: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("the pod has more than %d bytes of metrics", limit)
	}
	return data, nil
}

// Ask returns the agent's answer at a path of its health server. The API server forwards this one request.
func (a *Agents) Ask(ctx context.Context, p AgentPod, path string) ([]byte, error) {
	data, err := a.client.CoreV1().Pods(p.Namespace).ProxyGet("http", p.Name, p.port, path, nil).DoRaw(ctx)
	if apierrors.IsForbidden(err) {
		return nil, ErrNoProxy
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent through the API server: %w", text.RequestError(err))
	}
	return data, nil
}
