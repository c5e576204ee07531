package layer2

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/arp"
)

// TestNoCarrier: speakers hear each other on one network and announce on another. A node whose interface there is
// missing or has no carrier leaves its addresses to another node, and gets them back with the interface.
func TestNoCarrier(t *testing.T) {
	l := newLANOf(t, 3, t.TempDir())
	link := func(i int, args ...string) {
		t.Helper()
		must(t, l.nodes[i].Do(func() error { return exec.Command("ip", append([]string{"link"}, args...)...).Run() }))
	}
	plug := func(i int) {
		link(i, "add", "lan1", "type", "veth", "peer", "name", "switch")
		link(i, "set", "lan1", "up")
		link(i, "set", "switch", "up")
	}
	for i := range l.nodes {
		plug(i)
	}
	l.world.Interfaces = []string{"lan1"}
	l.tell(0, 1, 2)
	best := []int{l.best(vips[0]), l.best(vips[1])}
	l.told(best, 0, 1, 2)
	at := best[0]
	next := l.without(best, at)
	link(at, "set", "switch", "down")
	l.told(next, 0, 1, 2)
	l.lacks(at, "it leaves its addresses to other nodes, if one is healthier: none of the interfaces lan1 of an L2Advertisement exists and is connected")
	link(at, "set", "switch", "up")
	l.told(best, 0, 1, 2)
	link(at, "del", "lan1")
	l.told(next, 0, 1, 2)
	plug(at)
	l.told(best, 0, 1, 2)
	l.lacks(at, "")
}

// lacks waits until node i reports that it has its grant, and why it does not announce all of its addresses.
func (l *lan) lacks(i int, reason string) {
	l.t.Helper()
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var g announce.Standing
		text, _ := os.ReadFile(filepath.Join(l.world.Told, l.nodes[i].Name+".grant"))
		_ = json.Unmarshal(text, &g) // the file may not exist yet
		if g.Up && g.Reason == reason {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s says %s, want the reason %q", l.nodes[i].Name, text, reason)
		}
	}
}

// without returns the owners of the addresses if node i may have none.
func (l *lan) without(best []int, i int) []int {
	next := slices.Clone(best)
	for k, a := range vips {
		c, _ := announce.Decide(l.world.input())[a].Owner(map[string]bool{l.nodes[i].Name: true})
		next[k] = slices.IndexFunc(l.nodes, func(m *machine) bool { return m.Name == c.Node })
	}
	return next
}

// TestNoCarrierOfTwo: of two nodes, the holder of the Lease loses its link and still reaches the API server on another
// network. It does not renew the Lease, so that the other node has the address after the Lease's end.
func TestNoCarrierOfTwo(t *testing.T) {
	l, best := newPair(t)
	l.link(best, "down")
	l.until(vips[0], 1-best)
	l.link(best, "up")
	l.until(vips[0], best)
	t.Log(l.tape.Check(t), "changes of owner")
}

// TestInterfaces: the node answers for an address only on the interfaces of its advertisement, also after a change.
func TestInterfaces(t *testing.T) {
	l := newLAN(t, 1)
	for _, names := range [][]string{nil, {"lan1"}, {"eth0", "lan1"}, {"lan1"}, {"eth0"}} {
		l.world.Interfaces = names
		l.tell(0)
		if len(names) == 0 || names[0] == "eth0" {
			l.until(vips[0], 0)
			continue
		}
		for end := time.Now().Add(60 * time.Second); ; {
			l.fabric("ip", "neigh", "flush", "to", vips[0].String())
			if l.ask(vips[0]) < 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%v: it is answered for on eth0", names)
			}
		}
	}
}

// TestOn: an address is announced on the right interfaces. If there is none, its Services have one event.
func TestOn(t *testing.T) {
	l := links{known: true, all: []arp.Interface{{Name: "eth0", Network: true}, {Name: "eth1", Connected: true}}}
	l.wanted = [][]string{nil}
	if l.check(); l.excluded == "" || !l.cutOff() {
		t.Error("a network that is not connected is no fault")
	}
	l.wanted = [][]string{{"eth1", "eth9"}}
	if l.check(); l.excluded != "" {
		t.Errorf("one of two interfaces is enough, and the node is excluded: %s", l.excluded)
	}
	var told []string
	s := Speaker{links: l, refusals: newRefusals(), decisions: announce.Decide(world{Addrs: vips[:1], Nodes: []announce.Node{{Name: "node-1"}}}.input()), cfg: Config{Node: "node-1",
		Event: func(name api.Name, p api.Problem) { told = append(told, name.Name+" "+p.Reason+": "+p.Message) }}}
	for _, c := range []struct {
		names []string
		want  bool
	}{{nil, false}, {[]string{"eth1"}, false}, {[]string{"eth8", "eth9"}, true}, {[]string{"eth8", "eth9"}, true}, {nil, false}, {[]string{"eth9"}, true}} {
		if got := s.nowhere(vips[0], c.names); got != c.want {
			t.Errorf("an address for %v is announced nowhere: %v, want %v", c.names, got, c.want)
		}
	}
	want := []string{
		"web announceFailed: 172.18.0.200 is not announced: node node-1 has no interface eth8 or eth9 [which nodes have one? name them in nodeSelectors of the L2Advertisement]",
		"web announceFailed: 172.18.0.200 is not announced: node node-1 has no interface eth9 [which nodes have one? name them in nodeSelectors of the L2Advertisement]",
	}
	if !slices.Equal(told, want) {
		t.Errorf("the events are %q", told)
	}
}
