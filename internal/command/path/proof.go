package path

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/path/remote"
	"github.com/fairway-net/fairway/internal/path/trace"
)

const (
	// probeLimit bounds one probe: arming, sending, and reading what the nodes saw.
	probeLimit = 20 * time.Second
	// agentsNamespace has the agents.
	agentsNamespace = "kube-system"
)

// A prober sends probes through a cluster.
type prober struct {
	cluster *path.Cluster
	ask     path.Question
	agents  []kube.AgentPod
	// exec runs path-node in an agent's pod.
	exec func(ctx context.Context, p kube.AgentPod, in io.Reader, out io.Writer) error
}

// newProber finds the agents.
func newProber(ctx context.Context, a *agent.Tool, cluster *path.Cluster, ask path.Question) (*prober, error) {
	connection := a.Connection()
	connection.QPS, connection.Burst = quick, 2*quick
	agents, err := kube.ConnectAgents(connection, agentsNamespace)
	if err != nil {
		return nil, err
	}
	p := &prober{cluster: cluster, ask: ask}
	p.exec = func(ctx context.Context, pod kube.AgentPod, in io.Reader, out io.Writer) error {
		return agents.Exec(ctx, pod, []string{"fairway", "path-node"}, in, out)
	}
	p.agents, err = agents.List(ctx)
	return p, err
}

// agentOf returns the agent of a node. An error says why it cannot watch.
func (p *prober) agentOf(node string) (kube.AgentPod, error) {
	i := slices.IndexFunc(p.agents, func(a kube.AgentPod) bool { return a.Node == node })
	switch {
	case i < 0 || p.agents[i].Name == "":
		return kube.AgentPod{}, fmt.Errorf("no agent runs on %s [kubectl -n %s get pods -o wide -l app.kubernetes.io/name=fairway-agent]", node, agentsNamespace)
	case !p.agents[i].Running:
		return kube.AgentPod{}, fmt.Errorf("the agent on %s is %s [kubectl -n %s logs %s]", node, p.agents[i].State, agentsNamespace, p.agents[i].Name)
	}
	return p.agents[i], nil
}

// prove sends a probe the way that was predicted, and returns the prediction with what the nodes saw.
func (p *prober) prove(ctx context.Context, predicted *path.Path) *path.Path {
	proof := predicted.Proof
	if !proof.To.IsValid() {
		return predicted // there is no packet to send
	}
	if _, err := p.agentOf(proof.Sender); err != nil {
		predicted.NotProved = oneLine(err)
		return predicted
	}
	orders, leftOut := proof.Orders(runName(), trace.Tags[rand.IntN(len(trace.Tags))])
	result, err := p.send(ctx, orders, nil)
	if err == nil && slices.ContainsFunc(result.Done, func(d trace.Done) bool { return d.Changed || d.Lost }) {
		orders, leftOut = proof.Orders(runName(), orders[0].Tag) // the rules changed meanwhile
		result, err = p.send(ctx, orders, nil)
	}
	if err != nil {
		predicted.NotProved = oneLine(err)
		return predicted
	}
	return p.compare(predicted, result, leftOut)
}

// send watches the nodes of the orders for one probe. live watches the packets of a real client.
func (p *prober) send(ctx context.Context, orders []trace.Order, live func(context.Context) trace.Heard) (remote.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit+orders[0].For)
	defer cancel()
	return remote.Probe(ctx, remote.Plan{Orders: orders, Send: live, Transport: func(ctx context.Context, node string, in io.Reader, out io.Writer) error {
		pod, err := p.agentOf(node)
		if err != nil {
			return err
		}
		return p.exec(ctx, pod, in, out)
	}})
}

// compare adds what the nodes saw to the prediction for the endpoint that they saw.
func (p *prober) compare(predicted *path.Path, r remote.Result, leftOut []string) *path.Path {
	r.Ours = path.OursIn(p.cluster.Mode)
	r.NotWatched = append(r.NotWatched, leftOut...)
	way := trace.Follow(r.Record)
	ask := p.ask
	for _, h := range way.Hops {
		if h.After.Dst != predicted.Proof.To {
			ask.Follow = h.After.Dst
		}
	}
	found := predicted
	if ask.Follow.IsValid() {
		if again, err := path.Predict(p.cluster, ask); err == nil {
			found = again
		}
	}
	path.Compare(found, way, r.Heard)
	for i, n := range found.NotLooked {
		if err := r.Errors[n]; err != nil {
			found.NotLooked[i] = oneLine(err)
			if !strings.Contains(found.NotLooked[i], n) {
				found.NotLooked[i] = n + ": " + found.NotLooked[i]
			}
		}
	}
	return found
}

// oneLine returns an error's first line, without joined ones that say the same of other nodes.
func oneLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if strings.Contains(line, "forbidden") {
		return "your user may not create pods/exec in " + agentsNamespace + " [ask for that right, or use --predict]"
	}
	return line
}

// runName names a probe on the nodes.
func runName() string {
	return "p" + strconv.FormatUint(uint64(os.Getpid()), 36) + strconv.FormatUint(rand.Uint64N(1<<30), 36)
}
