package page

import (
	"cmp"
	"context"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command/top"
	flowtop "github.com/fairway-net/fairway/internal/flow/top"
	web "github.com/fairway-net/fairway/internal/path/page"
	"github.com/fairway-net/fairway/internal/text"
)

const (
	agentsNamespace = "kube-system"
	maxEdges        = 500 // that a browser draws
	maxNotes        = 8
)

// Traffic implements web.Source.
func (s *source) Traffic(ctx context.Context, service api.Name, send func(web.Traffic)) error {
	return top.Watch(ctx, s.connection, agentsNamespace, service, func(frames []top.NodeFrame, notes []string) {
		send(traffic(frames, notes, s.podsOf(service)))
	})
}

// podsOf returns the pods of a Service's endpoints, by address.
func (s *source) podsOf(service api.Name) map[string]web.Endpoint {
	pods := map[string]web.Endpoint{}
	for _, slice := range s.live.Slices(service) {
		for i, e := range slice.Endpoints {
			pods[e.Addr.String()] = web.Endpoint{Pod: slice.Pods.At(i), Node: e.Node}
		}
	}
	return pods
}

// traffic makes an edge from each node to each Service, or to each endpoint. The largest edges count.
func traffic(frames []top.NodeFrame, notes []string, pods map[string]web.Endpoint) web.Traffic {
	t := web.Traffic{Edges: []web.Edge{}}
	for _, n := range notes[:min(len(notes), maxNotes)] {
		what, hint := text.SplitHint(n)
		t.Notes = append(t.Notes, web.Note{Text: what, Advice: hint})
	}
	for _, f := range frames {
		t.Of++
		t.Nodes += f.Nodes
		for i := range f.Rows {
			t.Edges = append(t.Edges, edge(f.Node, &f.Rows[i], pods))
		}
	}
	slices.SortStableFunc(t.Edges, func(a, b web.Edge) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), cmp.Compare(rate(b.New), rate(a.New)), cmp.Compare(rate(b.Bytes), rate(a.Bytes)))
	})
	t.More = max(0, len(t.Edges)-maxEdges)
	t.Edges = t.Edges[:len(t.Edges)-t.More]
	return t
}

// rate is 0 for a rate that is not known.
func rate(f *float64) float64 {
	if f == nil {
		return 0
	}
	return *f
}

func edge(node string, r *flowtop.Row, pods map[string]web.Endpoint) web.Edge {
	e := web.Edge{
		Node: node, To: r.Name(), Service: r.Namespace + "/" + r.Service, Connections: r.Connections, New: r.NewPerSecond, Bytes: r.BytesPerSecond,
		Refused: rate(r.RejectsPerSecond) + rate(r.DropsPerSecond), Unanswered: r.Unanswered,
	}
	if r.Endpoint != nil {
		at := pods[r.Endpoint.Addr().String()]
		e.To, e.Pod, e.At = r.Endpoint.String(), at.Pod, at.Node
	}
	return e
}
