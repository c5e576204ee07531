package layer2

import (
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestOpenConnections: a client's open connections go on when their address moves to another node, because the owner's
// speaker hangs or the owner is drained, and when the address moves back. So do connections that were opened meanwhile.
func TestOpenConnections(t *testing.T) {
	l := newLAN(t, 3)
	for _, a := range vips {
		for i := range l.world.Nodes {
			l.world.Nodes[i].Excluded = ""
		}
		best, last := l.best(a), announce.Decide(l.world.input())[a].Candidates()[2].Node
		// On a busy machine the address could move on to the third node, which has another previous owner.
		l.world.Nodes[slices.IndexFunc(l.nodes, func(m *machine) bool { return m.Name == last })].Excluded = "it only votes"
		l.tell(0, 1, 2)
		l.until(a, best)
		first := l.open(a)
		l.signal(best, syscall.SIGSTOP)
		l.owner(a, best)
		first.goesOn("the owner hangs")
		second := l.open(a)
		quiet := first.talks("while the owner comes back")
		l.signal(best, syscall.SIGCONT)
		l.until(a, best)
		quiet()
		first.goesOn("the owner is back")
		second.goesOn("the owner is back")
		third := l.open(a)

		l.world.Nodes[best].Excluded = "it is drained"
		l.tell(0, 1, 2)
		l.owner(a, best)
		first.goesOn("the owner is drained")
		third.ends("the owner is drained")
		quiet = first.talks("while the drain is undone")
		l.world.Nodes[best].Excluded = ""
		l.tell(0, 1, 2)
		l.until(a, best)
		quiet()
	}
}

// An opened is a connection with the node that accepted it.
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

// talks sends requests all the time, so that some meet a node that has just released the address, until quiet is called.
func (o *opened) talks(when string) (quiet func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				if answer := o.Ask(30 * time.Second); answer.By != o.by {
					o.l.t.Errorf("%s: a connection through %s: %v", when, o.by, answer)
					return
				}
			}
		}
	}()
	return func() { close(stop); <-ended }
}

// ends ends the connection in order: both ends close it.
func (o *opened) ends(when string) {
	o.l.t.Helper()
	if err := o.End(30 * time.Second); err != nil {
		o.l.t.Errorf("%s: the end of a connection through %s: %v", when, o.by, err)
	}
}

// TestRouted: open connections to an address by BGP go on, and end in order, when the router moves them to another
// node, also while a speaker is replaced.
func TestRouted(t *testing.T) {
	l := newLAN(t, 3)
	l.world.Routed = true
	l.tell(0, 1, 2)
	for _, a := range vips {
		var all []*opened
		check := func(when string) {
			t.Helper()
			for at, o := range all {
				o.goesOn(fmt.Sprintf("%s: opened by way of node %d", when, at+1))
			}
		}
		for i := range l.nodes {
			l.lead(a, i)
			all = append(all, l.open(a))
			check(fmt.Sprintf("the router leads to node %d", i+1))
		}
		must(t, l.nodes[1].cmd.Process.Signal(syscall.SIGTERM))
		_ = l.nodes[1].cmd.Wait()
		l.lead(a, 1)
		check("a speaker has ended")
		l.start(1)
		check("a speaker begins")
		l.lead(a, 0)
		for _, o := range all {
			o.ends("all lead to node 1")
		}
	}
}

var macPattern = regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`)

// lead makes the router lead to an address through node i, after that node's kernel can forward to the other nodes.
func (l *lan) lead(a netip.Addr, i int) {
	l.t.Helper()
	family, flag, ways := "ip6", "-6", 2
	if a.Is4() {
		family, flag = "ip", "-4"
	}
	if i == len(l.nodes)-1 {
		ways = 1 // the last node in the order passes nothing on
	}
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var out []byte
		_ = l.nodes[i].Do(func() (err error) {
			out, err = exec.Command("nft", "list", "table", family, "fairway-former").CombinedOutput()
			return err // the table may not exist yet
		})
		if strings.Count(string(out), a.String()+" :") == ways && len(macPattern.FindAllString(string(out), -1)) == len(l.nodes)-1 {
			break
		}
		if time.Now().After(end) {
			l.t.Fatalf("node %d does not know the way on: %s", i+1, out)
		}
	}
	must(l.t, l.net.Fabric.Do(func() error {
		return exec.Command("ip", flag, "route", "replace", a.String(), "via", l.nodes[i].Addr(a.Is4()).String()).Run()
	}))
}

func named(node string) api.Selector {
	return api.NewSelector(api.Requirement{Key: "name", Op: api.In, Values: []string{node}})
}

// TestPreviousOwner: the holder of an address sends packets to the owner before, and at first to the second-best node.
// It sends none to a node that has been silent for too long, until that node is heard again. No other node sends them
// on.
func TestPreviousOwner(t *testing.T) {
	a := vips[0]
	in := world{Addrs: vips[:1], Nodes: []announce.Node{{Name: "node-1"}, {Name: "node-2"}, {Name: "node-3"}}}.input()
	in.L2[0].PreferredNodeSelectors = []announce.PreferredNodeSelector{{Weight: 2, Preference: named("node-1")}, {Weight: 1, Preference: named("node-2")}}
	for i := range in.Nodes {
		in.Nodes[i].Labels = map[string]string{"name": in.Nodes[i].Name}
	}
	d := announce.Decide(in)[a]
	nodes := []string{"node-1", "node-2", "node-3"}
	all := map[string]*forwarding{} // the state of each node
	for _, node := range nodes {
		f := newForwarding(nil)
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
	check("another one has it", "node-3 node-1")
	moves("node-1", false)
	check("the one before is to have it again, and does not yet", "node-3 node-1")
	moves("node-1", true)
	check("and has it", "node-1 node-3")
	moves("node-2", true)
	check("the third one", "node-2 node-1")
	now := time.Now()
	hear := func(dead ...string) {
		for _, f := range all {
			f.noteDead(now, time.Second, set(dead))
		}
	}
	hear("node-1")
	check("one has just been declared dead", "node-2 node-1")
	now = now.Add(2 * time.Second)
	hear("node-1")
	check("it is dead", "node-2")
	hear()
	check("it is heard again", "node-2 node-1")
	to := all["node-2"].targets("node-2", map[netip.Addr]*announce.Decision{a: d}, func(node string, _ netip.Addr) netip.Addr { return map[string]netip.Addr{"node-1": vips[1]}[node] })
	if !maps.Equal(to.Previous, map[netip.Addr]netip.Addr{a: vips[1]}) || to.First != nil {
		t.Errorf("the kernel sends to %v", to)
	}
}

// TestCarriers: wherever a router leads a packet, the packet visits each carrier, and none twice except the first one,
// also while nodes disagree about the carriers.
func TestCarriers(t *testing.T) {
	addrs := map[string]netip.Addr{}
	byAddr := map[netip.Addr]string{}
	var nodes []string
	for i := range 8 {
		node, a := fmt.Sprintf("node-%d", i+1), netip.AddrFrom4([4]byte{172, 18, 0, byte(11 + i)})
		nodes, addrs[node], byAddr[a] = append(nodes, node), a, node
	}
	at := func(node string) netip.Addr { return addrs[node] }
	knows := func(out, gone map[string]bool) *forwarding {
		f := newForwarding(nil)
		f.noteSpeaking(nodes, out)
		f.gone = gone
		return &f
	}
	all := map[string]*forwarding{}
	for _, node := range nodes {
		all[node] = knows(set([]string{"node-8"}), nil)
	}
	walk := func(from string, carriers func(node string) []string) string {
		text := from
		to, _ := all[from].carrierTargets(from, carriers(from), at)
		for hops := 0; to.IsValid(); hops++ {
			if hops > 2*maxCarriers {
				return text + " and round"
			}
			node := byAddr[to]
			text += " " + node[5:]
			_, to = all[node].carrierTargets(node, carriers(node), at)
		}
		return text
	}
	same := func(carriers ...string) func(string) []string { return func(string) []string { return carriers } }
	for _, c := range []struct {
		from     string
		carriers func(string) []string
		want     string
	}{
		{"node-1", same("node-1", "node-2", "node-3"), "node-1 2 3"},
		{"node-2", same("node-1", "node-2", "node-3"), "node-2 1 2 3"},
		{"node-3", same("node-1", "node-2", "node-3"), "node-3 1 2 3"},
		{"node-4", same("node-1", "node-2", "node-3"), "node-4 1 2 3"}, // not a carrier: its route was withdrawn
		{"node-1", same("node-3", "node-1"), "node-1 3"},
		{"node-1", same("node-1"), "node-1"},
		{"node-1", same("node-8", "node-2"), "node-1 2"}, // its speaker was never heard
		{"node-1", same("node-7", "node-1", "node-2", "node-3", "node-4", "node-5", "node-6"), "node-1 2 3 4 7"},
		{"node-2", func(node string) []string {
			if node == "node-1" {
				return []string{"node-3", "node-1"}
			}
			return []string{"node-1", "node-2"}
		}, "node-2 1 3"},
	} {
		if got := walk(c.from, c.carriers); got != c.want {
			t.Errorf("packets go %q, want %q", got, c.want)
		}
	}
	for _, f := range all {
		f.gone = set([]string{"node-1"})
	}
	if got := walk("node-3", same("node-1", "node-2", "node-3")); got != "node-3 2 3" {
		t.Errorf("a node is dead: packets go %q", got)
	}
}

// movesTo tells all nodes that owner owns the address now, and lets it hold the address if holds. It returns the
// holder.
func movesTo(d *announce.Decision, all map[string]*forwarding, holder, owner string, holds bool) string {
	if holds {
		holder = owner
	}
	for node, f := range all {
		f.setOwner(d, owner, nil)
		f.release(vips)
		if node == holder {
			f.hold(vips[:1])
		}
	}
	return holder
}

// way returns the nodes that a packet of an unknown connection visits.
func way(all map[string]*forwarding, holder string, a netip.Addr) string {
	text, seen := holder, map[string]bool{}
	for node := holder; !seen[node]; text += " " + node {
		seen[node] = true
		if node = all[node].target(node, a); node == "" {
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
