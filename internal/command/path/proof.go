package path

import (
	"context"
	"errors"
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
	seen func(trace.Observation) // as remote.Plan has it
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

// prove sends a probe the way that was predicted, and returns the prediction with what the nodes saw.
func (p *prober) prove(ctx context.Context, predicted *path.Path) *path.Path {
	proof := predicted.Proof
	if !proof.To.IsValid() {
		return predicted // there is no packet to send
	}
	if _, err := kube.AgentOn(p.agents, proof.Sender); err != nil {
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

// maxEach bounds the probes of --each, and eachLimit their time.
const (
	maxEach   = 64
	eachLimit = time.Minute
)

// each sends probes until every endpoint that gets packets was seen. It returns the first path that is no success, else
// the last, with the count and the worst end of each endpoint.
func (p *prober) each(ctx context.Context, predicted *path.Path) *path.Path {
	ctx, cancel := context.WithTimeout(ctx, eachLimit)
	defer cancel()
	kept := 0
	for _, c := range predicted.Candidates {
		if c.Kept {
			kept++
		}
	}
	var shown *path.Path
	count, worst := map[string]int{}, map[string]path.State{}
	sent := 0
	for sent < min(maxEach, 4+8*kept) && ctx.Err() == nil && (sent == 0 || len(count) < kept) {
		found, err := path.Predict(p.cluster, p.ask)
		if err != nil {
			break
		}
		found = p.prove(ctx, found)
		sent++
		for _, c := range found.Candidates {
			if c.Followed && found.Verdict.Observed != "" {
				count[c.Addr]++
				if worst[c.Addr] == "" || worst[c.Addr] == path.Delivered {
					worst[c.Addr] = found.Verdict.Observed
				}
			}
		}
		if shown == nil || succeeded(shown) {
			shown = found
		}
		if found.NotProved != "" || found.Verdict.Observed == path.Accepted {
			break // further probes show no more
		}
	}
	if shown == nil {
		return predicted
	}
	for i := range shown.Candidates {
		c := &shown.Candidates[i]
		c.Probes, c.Observed = count[c.Addr], worst[c.Addr]
	}
	if shown.Probe != nil {
		shown.Probe.Count = sent
	}
	if len(count) < kept && shown.NotProved == "" {
		shown.NotLooked = append(shown.NotLooked, fmt.Sprintf("%d of %d endpoints, which no probe came to", kept-len(count), kept))
	}
	return shown
}

func succeeded(p *path.Path) bool {
	return p.NotProved == "" && p.Verdict.Agree != nil && *p.Verdict.Agree && p.Verdict.Observed == path.Delivered
}

// live waits for a packet of the client itself.
func (p *prober) live(ctx context.Context, predicted *path.Path, limit time.Duration) *path.Path {
	proof := predicted.Proof
	if !proof.To.IsValid() {
		return predicted
	}
	orders, leftOut := proof.LiveOrders(runName(), limit)
	result, err := p.send(ctx, orders, func(ctx context.Context) trace.Heard {
		select {
		case <-time.After(limit):
		case <-ctx.Done():
		}
		return trace.Heard{}
	})
	if err != nil {
		predicted.NotProved = oneLine(err)
		return predicted
	}
	heard, seen := path.HeardLive(result.Record)
	if !seen {
		predicted.NotProved = fmt.Sprintf("no new connection of the client came within %v", limit)
		return predicted
	}
	result.Heard = heard
	found := p.compare(predicted, result, leftOut)
	found.Probe.Live = true
	return found
}

// send watches the nodes of the orders for one probe. live watches the packets of a real client.
func (p *prober) send(ctx context.Context, orders []trace.Order, live func(context.Context) trace.Heard) (remote.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit+orders[0].For)
	defer cancel()
	return remote.Probe(ctx, remote.Plan{Orders: orders, Send: live, Seen: p.seen, Transport: func(ctx context.Context, node string, in io.Reader, out io.Writer) error {
		pod, err := kube.AgentOn(p.agents, node)
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
		if _, err := kube.AgentOn(p.agents, n); err != nil && p.cluster.Nodes[n] != nil {
			found.NotLooked[i] = oneLine(err)
		} else if err := r.Errors[n]; err != nil {
			found.NotLooked[i] = n + " (" + oneLine(err) + ")"
		}
	}
	return found
}

// oneLine returns an error's first line, without joined ones that say the same of other nodes.
func oneLine(err error) string {
	if errors.Is(err, kube.ErrNoExec) {
		return kube.ErrNoExec.Error() + ", " + agentsNamespace + " [ask for that right, or use --predict]"
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// runName names a probe on the nodes.
func runName() string {
	return "p" + strconv.FormatUint(uint64(os.Getpid()), 36) + strconv.FormatUint(rand.Uint64N(1<<30), 36)
}
