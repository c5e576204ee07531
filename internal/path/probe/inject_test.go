package probe_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/path/observe"
	"github.com/fairway-net/fairway/internal/path/probe"
	"github.com/fairway-net/fairway/internal/path/trace"
	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/internal/testing/twonodes"
)

// TestInject: an injected packet takes the way of a pod's or an outside client's packet, and the answer is heard. The node
// needs no sight of the pod's namespace, and keeps no link.
func TestInject(t *testing.T) {
	t.Parallel()
	for _, is4 := range []bool{true, false} {
		c := twonodes.New(t, is4, twonodes.NFTables)
		stop := map[string]func(){"tcp": c.Server.Serve("tcp", c.Endpoint), "udp": c.Server.Serve("udp", c.Endpoint)}
		clients := []trace.Send{{Pod: c.Client.Addr(is4)}, {Pod: c.Client.Addr(is4), Inject: true}, {Outside: c.Net.Outside.Addr(is4)}}
		for _, want := range []trace.Outcome{trace.Answered, trace.Refused} {
			for _, proto := range []api.Proto{api.TCP, api.UDP} {
				for _, send := range clients {
					to := c.VIP
					if send.Outside.IsValid() {
						to = netip.AddrPortFrom(c.Nodes[0].Addr(is4), 30080)
					}
					w, heard := injected(t, c, proto, to, send)
					if heard.Outcome != want || !heard.Injected || len(w.Hops) != 2 || w.Hops[1].After.Dst != c.Endpoint {
						t.Errorf("%v to %v by %+v: want %s\n%s", proto, to, send, want, summary(w, heard))
					}
				}
			}
			stop["tcp"]()
			stop["udp"]()
		}
		if links := c.Run(c.Nodes[0], "", "ip", "-br", "link"); strings.Contains(links, "fwpath") {
			t.Errorf("links are left:\n%s", links)
		}
	}
}

func injected(t *testing.T, c *twonodes.Cluster, proto api.Proto, to netip.AddrPort, send trace.Send) (trace.Way, trace.Heard) {
	t.Helper()
	order := c.Order("", proto, to)
	send.Patience = 20 * time.Second
	order.Send = &send
	var heard trace.Heard
	all := c.Watch(order, func() {
		c.On(c.Nodes[0], func() error {
			heard = probe.Send(t.Context(), order, observe.Config{Namespaces: []string{}}) // it must not need the pod's namespace
			return nil
		})
	})
	return trace.Follow(trace.Record{To: to, Endpoints: order.Endpoints, Observations: all, Heard: heard, Sender: "node-1"}), heard
}

// TestTwoProbes: another probe with the same tag at the same time changes nothing in the way of this one.
func TestTwoProbes(t *testing.T) {
	t.Parallel()
	c := twonodes.New(t, true, twonodes.NFTables)
	c.Server.Serve("tcp", c.Endpoint)
	other := c.Net.Pod(c.Nodes[0], "other", netip.MustParseAddr("10.244.1.101"))
	order := c.Order("", api.TCP, c.VIP)
	order.Send = &trace.Send{Patience: 20 * time.Second}
	var heard trace.Heard
	send := func() {
		for i, from := range []*testnet.Host{other, c.Client, other} {
			c.On(from, func() error {
				if h := probe.Send(t.Context(), order, c.Config()); i == 1 {
					heard = h
				}
				return nil
			})
		}
	}
	all := c.Watch(order, send)
	w := trace.Follow(trace.Record{To: c.VIP, Endpoints: order.Endpoints, Observations: all, Heard: heard, Sender: "node-1"})
	if len(w.Hops) != 2 || len(w.Reply) != 2 || w.Hops[0].Before.Src != heard.Local || w.Hops[1].Before.Src != heard.Local || w.Reply[1].After.Dst != heard.Local {
		t.Errorf("the way is\n%s", summary(w, heard))
	}
}

// TestRemoveStale: links of a probe that was killed go, and links of a running one and of others stay.
func TestRemoveStale(t *testing.T) {
	t.Parallel()
	ns := testnet.NewNamespace(t, "node")
	now := time.Now().UTC()
	for name, alias := range map[string]string{
		"fwpathold0": "fairway path " + now.Add(-time.Hour).Format(time.RFC3339), "fwpathnew0": "fairway path " + now.Format(time.RFC3339),
		"fwpathx0": "mine", "eth0": "fairway path " + now.Add(-time.Hour).Format(time.RFC3339),
	} {
		run(t, ns, "ip", "link", "add", name, "type", "veth", "peer", "name", strings.TrimSuffix(name, "0")+"1")
		run(t, ns, "ip", "link", "set", name, "alias", alias)
	}
	if err := ns.Do(probe.RemoveStale); err != nil {
		t.Fatal(err)
	}
	left := run(t, ns, "ip", "-br", "link")
	for name, stays := range map[string]bool{"fwpathold0": false, "fwpathold1": false, "fwpathnew0": true, "fwpathx0": true, "eth0": true} {
		if strings.Contains(left, name+"@") != stays {
			t.Errorf("%s stays: %v, want %v", name, !stays, stays)
		}
	}
}

func run(t *testing.T, ns *testnet.Namespace, args ...string) string {
	t.Helper()
	var out []byte
	err := ns.Do(func() (err error) {
		if out, err = exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%q: %w: %s", args, err, out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
