package path

import (
	"context"
	"net/netip"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// An Asked is a question with its prediction, for other commands than this one.
type Asked struct {
	Path    *path.Path
	tool    *agent.Tool
	cluster *path.Cluster
	ask     path.Question
}

// Ask reads the API server and predicts the way, as the command does.
func Ask(ctx context.Context, a *agent.Tool, from, to string) (*Asked, error) {
	var ask path.Question
	var err error
	namespace := a.Connection().Namespace()
	if ask.From, err = path.ParseFrom(from, namespace); err != nil {
		return nil, err
	}
	if ask.To, err = path.ParseTo(to, namespace); err != nil {
		return nil, err
	}
	cluster, err := (&question{}).cluster(ctx, command.Env{}, a, ask.From.Kind == "Outside")
	if err != nil {
		return nil, err
	}
	x := &Asked{tool: a, cluster: cluster, ask: ask}
	x.Path, err = path.Predict(cluster, ask)
	return x, err
}

// Prove sends a probe and returns the prediction with the nodes' observations. Each observation goes to seen as it arrives,
// from one goroutine a node.
func (x *Asked) Prove(ctx context.Context, seen func(trace.Observation)) *path.Path {
	p, err := newProber(ctx, x.tool, x.cluster, x.ask)
	if err != nil {
		x.Path.NotProved = oneLine(err)
		return x.Path
	}
	p.seen = seen
	return p.prove(ctx, x.Path)
}

// Policies returns the decisions of both pods' policies about the connection of the path, as fairway policy does. It
// returns nothing if an end is no pod.
func (x *Asked) Policies(p *path.Path) []networkpolicy.Explanation {
	from := x.cluster.Pods[x.ask.From.Pod]
	to := p.Proof.To
	for _, c := range p.Candidates {
		if addr, err := netip.ParseAddrPort(c.Addr); err == nil && c.Followed {
			to = addr
		}
	}
	if from == nil || from.HostNetwork || !to.IsValid() {
		return nil
	}
	all, err := x.cluster.Policies.Connections(from.Pod, networkpolicy.Egress, to.Addr().String(), p.Proof.Proto, to.Port())
	if err != nil {
		return nil
	}
	var out []networkpolicy.Explanation
	for _, c := range all {
		if c.To.Pod != nil {
			out = append(out, networkpolicy.Explain(x.cluster.Policies, c))
		}
	}
	return out
}
