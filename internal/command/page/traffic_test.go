package page

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/fairway-net/fairway/internal/command/top"
	flowtop "github.com/fairway-net/fairway/internal/flow/top"
	web "github.com/fairway-net/fairway/internal/path/page"
)

// Each row of a node is an edge. The largest ones count, and endpoints have their pods' names.
func TestTraffic(t *testing.T) {
	rate := 2.5
	at := netip.MustParseAddrPort("10.244.1.5:8080")
	frames := []top.NodeFrame{
		{Node: "node-1", Frame: flowtop.Frame{Nodes: 1, Rows: []flowtop.Row{{Namespace: "shop", Service: "web", Port: "http", Connections: 3, NewPerSecond: &rate, RejectsPerSecond: &rate}}}},
		{Node: "node-2", Frame: flowtop.Frame{Rows: []flowtop.Row{{Namespace: "shop", Service: "web", Endpoint: &at, Connections: 7}}}},
	}
	got := traffic(frames, []string{"no bytes [sysctl it is]"}, map[string]web.Endpoint{"10.244.1.5": {Pod: "web-a", Node: "node-3"}})
	want := []web.Edge{
		{Node: "node-2", To: "10.244.1.5:8080", Service: "shop/web", Pod: "web-a", At: "node-3", Connections: 7},
		{Node: "node-1", To: "shop/web:http", Service: "shop/web", Connections: 3, New: &rate, Refused: 2.5},
	}
	if !slices.Equal(got.Edges, want) || got.Nodes != 1 || got.Of != 2 || got.Notes[0] != (web.Note{Text: "no bytes", Advice: "sysctl it is"}) {
		t.Errorf("%+v", got)
	}
	many := []top.NodeFrame{{Frame: flowtop.Frame{Rows: make([]flowtop.Row, maxEdges+3)}}}
	if got := traffic(many, nil, nil); len(got.Edges) != maxEdges || got.More != 3 {
		t.Errorf("%d edges, %d more", len(got.Edges), got.More)
	}
}
