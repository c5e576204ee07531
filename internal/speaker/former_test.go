package speaker

import (
	"fmt"
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

// TestThirdOwner: a connection that is open goes on while its address moves on, from node to node and back.
func TestThirdOwner(t *testing.T) {
	l := newLAN(t, 3)
	a := vips[0]
	var order []int // the best first
	for _, c := range announce.Decide(l.world.input())[a].Candidates() {
		order = append(order, slices.IndexFunc(l.nodes, func(m *machine) bool { return m.Name == c.Node }))
	}
	exclude := func(i int, why string) {
		l.world.Nodes[i].Excluded = why
		l.tell(0, 1, 2)
	}
	var all []*opened
	for i, owner := range order {
		l.until(a, owner)
		l.askFor(testnet.Interleaved, a)
		all = append(all, l.open(a))
		for at, o := range all {
			o.goesOn(fmt.Sprintf("opened at owner %d, now owner %d has it", at, i))
		}
		if i < len(order)-1 {
			exclude(owner, "it is drained")
		}
	}
	for i := len(order) - 2; i >= 0; i-- {
		exclude(order[i], "")
		l.until(a, order[i])
		l.askFor(testnet.Interleaved, a)
		for at, o := range all {
			o.goesOn(fmt.Sprintf("opened at owner %d, and owner %d has it again", at, i))
		}
	}
	t.Log(l.tape.Check(t), "changes of owner")
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

// TestFormers: packets go to whose an address was before, by that to the one before it, and at first to the next best
// node; not to one that has been silent for too long, until it is heard again, and never round.
func TestFormers(t *testing.T) {
	a := vips[0]
	in := world{Addrs: vips[:1], Nodes: []announce.Node{{Name: "node-1"}, {Name: "node-2"}, {Name: "node-3"}}}.input()
	in.L2[0].PreferredNodeSelectors = []announce.PreferredNodeSelector{{Weight: 2, Preference: named("node-1")}, {Weight: 1, Preference: named("node-2")}}
	for i := range in.Nodes {
		in.Nodes[i].Labels = map[string]string{"name": in.Nodes[i].Name}
	}
	d := announce.Decide(in)[a]
	nodes := []string{"node-1", "node-2", "node-3"}
	all := map[string]*formers{} // what each node knows
	for _, node := range nodes {
		f := newFormers()
		all[node] = &f
	}
	holder := ""
	moves := func(owner string, holds bool) { holder = movesTo(d, all, holder, owner, holds) }
	check := func(when, want string) {
		t.Helper()
		if got := way(all, holder, a); got != want {
			t.Errorf("%s: packets go %s, want %s", when, got, want)
		}
	}
	moves("node-1", true)
	check("nobody was the owner before", "node-1 node-2")
	moves("node-3", true)
	check("another one has it", "node-3 node-1 node-2")
	moves("node-1", false)
	check("the one before is to have it again, and does not yet", "node-3 node-1 node-2")
	moves("node-1", true)
	check("and has it", "node-1 node-3 node-2")
	moves("node-2", true)
	check("the third one", "node-2 node-1 node-3")
	now := time.Now()
	hear := func(dead ...string) {
		for _, f := range all {
			f.hear(now, time.Second, set(dead))
		}
	}
	hear("node-1")
	check("one has just been declared dead", "node-2 node-1 node-3")
	now = now.Add(2 * time.Second)
	hear("node-1")
	check("it is dead", "node-2 node-3")
	hear()
	check("it is heard again", "node-2 node-1 node-3")
	if to := all["node-2"].wanted("node-2", func(node string, _ netip.Addr) netip.Addr { return map[string]netip.Addr{"node-1": vips[1]}[node] }); !maps.Equal(to, map[netip.Addr]netip.Addr{a: vips[1]}) {
		t.Errorf("the kernel sends to %v", to)
	}
}

// movesTo lets all nodes know that an address is to be another's, and hold it there. It returns who holds it.
func movesTo(d *announce.Decision, all map[string]*formers, holder, owner string, holds bool) string {
	if holds {
		holder = owner
	}
	for node, f := range all {
		f.owned(d, owner, nil)
		f.leave(vips)
		if node == holder {
			f.enter(vips[:1])
		}
	}
	return holder
}

// way is where a packet goes that no node knows.
func way(all map[string]*formers, holder string, a netip.Addr) string {
	text, seen := holder, map[string]bool{}
	for node := holder; !seen[node]; text += " " + node {
		seen[node] = true
		if node = all[node].next(node, a); node == "" {
			return text
		}
	}
	return text + " and round"
}

func set(nodes []string) map[string]bool {
	all := map[string]bool{}
	for _, n := range nodes {
		all[n] = true
	}
	return all
}
