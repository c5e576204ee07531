package layer2

import (
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// TestHoldBack: a node waits after it was cut off for long enough, but not after its start.
func TestHoldBack(t *testing.T) {
	var h holdBack
	now := time.Now()
	for i, step := range []struct {
		after    time.Duration
		majority bool
		waits    bool
		isolated bool
	}{
		{0, false, false, false}, {5 * time.Second, false, false, false}, {time.Second, true, false, false}, // the start
		{time.Second, false, false, false}, {isolatedFor / 2, true, false, false}, // a short break
		{time.Second, false, false, false}, {isolatedFor, false, false, true}, {0, true, true, false},
		{holdDown / 2, true, true, false}, {holdDown / 2, true, false, false},
	} {
		now = now.Add(step.after)
		if h.note(step.majority, now); h.waits(now) != step.waits || h.isolated(now) != step.isolated {
			t.Errorf("step %d: waits %v, isolated %v", i, h.waits(now), h.isolated(now))
		}
	}
}

// TestOwnerOfAll: if all nodes wait, the best one that is not dead has the address.
func TestOwnerOfAll(t *testing.T) {
	l := world{Self: "node-1", Addrs: vips[:1], Nodes: []announce.Node{{Name: "node-1"}, {Name: "node-2"}, {Name: "node-3"}}}
	d := announce.Decide(l.input())[vips[0]]
	first, second := d.Candidates()[0].Node, d.Candidates()[1].Node
	all := map[string]bool{"node-1": true, "node-2": true, "node-3": true}
	for _, c := range []struct {
		out, dead map[string]bool
		want      string
	}{{nil, nil, first}, {map[string]bool{first: true}, nil, second}, {all, nil, first}, {all, map[string]bool{first: true}, second}, {all, all, ""}} {
		if o, _ := (claimView{out: c.out, dead: c.dead}).owner(d); o.Node != c.want {
			t.Errorf("without %v, %v dead: %q, want %q", c.out, c.dead, o.Node, c.want)
		}
	}
}
