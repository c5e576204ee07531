package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/announce"
	"github.com/fairway-net/fairway/internal/labels"
	"github.com/fairway-net/fairway/internal/testnet"
)

// TestOpenConnections: connections that a client has open go on when their address moves to another
// node, because the speaker of its owner hangs, or the owner is drained, and when it comes back; also
// those that were opened meanwhile.
func TestOpenConnections(t *testing.T) {
	l := newLAN(t, 3)
	for _, a := range vips {
		for i := range l.world.Nodes {
			l.world.Nodes[i].Excluded = ""
		}
		best, last := l.best(a), announce.Decide(l.world.input())[a].Candidates()[2].Node
		// On a busy machine the address could move on to the third node, which names another former owner.
		l.world.Nodes[slices.IndexFunc(l.nodes, func(m *machine) bool { return m.Name == last })].Excluded = "it only votes"
		l.tell(0, 1, 2)
		l.until(a, best)
		first := l.open(a)
		l.signal(best, syscall.SIGSTOP)
		l.owner(a, best)
		first.goesOn("the owner hangs")
		second := l.open(a)
		l.signal(best, syscall.SIGCONT)
		l.until(a, best)
		first.goesOn("the owner is back")
		second.goesOn("the owner is back")

		l.world.Nodes[best].Excluded = "it is drained"
		l.tell(0, 1, 2)
		l.owner(a, best)
		first.goesOn("the owner is drained")
		l.world.Nodes[best].Excluded = ""
		l.tell(0, 1, 2)
		l.until(a, best)
	}
}

// An opened is a connection, and the node that took it.
type opened struct {
	*testnet.Conn
	l  *lan
	by string
}

// open opens a connection to an address.
func (l *lan) open(a netip.Addr) *opened {
	l.t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); {
		c, err := l.net.Outside.Dial("tcp", netip.AddrPortFrom(a, 8080), 5*time.Second)
		if err != nil {
			continue
		}
		l.t.Cleanup(c.Close)
		if answer := c.Ask(5 * time.Second); answer.By != "" {
			return &opened{c, l, answer.By}
		}
	}
	l.t.Fatalf("nobody takes connections to %v", a)
	return nil
}

func (o *opened) goesOn(when string) {
	o.l.t.Helper()
	if answer := o.Ask(30 * time.Second); answer.By != o.by {
		o.l.t.Errorf("%s: a connection through %s: %v", when, o.by, answer)
	}
}

func named(node string) labels.Selector {
	return labels.New(labels.Requirement{Key: "name", Op: labels.In, Values: []string{node}})
}

// TestFormers: packets go to whose an address was last, else to the next best node; not to one that
// has been silent for too long, until it is heard again.
func TestFormers(t *testing.T) {
	a, b := vips[0], vips[1]
	at := map[string]netip.Addr{"node-2": netip.MustParseAddr("172.18.0.12"), "node-3": netip.MustParseAddr("172.18.0.13")}
	in := world{Addrs: vips, Nodes: []announce.Node{{Name: "node-1"}, {Name: "node-2"}, {Name: "node-3"}}}.input()
	in.L2[0].PreferredNodeSelectors = []announce.PreferredNodeSelector{{Weight: 2, Preference: named("node-1")}, {Weight: 1, Preference: named("node-2")}}
	for i := range in.Nodes {
		in.Nodes[i].Labels = map[string]string{"name": in.Nodes[i].Name}
	}
	decisions := announce.Decide(in)
	in.Nodes = in.Nodes[:1]
	decisions[b] = announce.Decide(in)[b] // nobody else may
	now := time.Now()
	f := newFormers()
	check := func(when string, want map[netip.Addr]netip.Addr) {
		t.Helper()
		got := f.wanted(now, time.Second, func(node string, _ netip.Addr) netip.Addr { return at[node] })
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	f.enter("node-1", vips, decisions, nil)
	check("nobody is known", map[netip.Addr]netip.Addr{a: at["node-2"]})
	f.leave(vips)
	check("nothing is held", map[netip.Addr]netip.Addr{})
	f.others[b] = "node-3"
	f.enter("node-1", vips, decisions, map[string]bool{"node-2": true})
	want := map[netip.Addr]netip.Addr{a: at["node-3"], b: at["node-3"]}
	check("one is dead", want)
	f.hear(now, map[string]bool{"node-3": true})
	check("just declared dead", want)
	now = now.Add(2 * time.Second)
	f.hear(now, map[string]bool{"node-3": true})
	check("dead", map[netip.Addr]netip.Addr{})
	f.hear(now, nil)
	check("heard again", want)
}
