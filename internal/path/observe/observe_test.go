package observe_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/path/observe"
	"github.com/fairway-net/fairway/internal/path/trace"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/twonodes"
)

// chains returns the chains in which a node's rules judged the probe or its answer, in order, without repetition.
func chains(all []trace.Observation, node string, reply bool) (names []string) {
	for _, o := range all {
		if o.Node == node && o.Reply == reply && o.Rule != nil {
			names = append(names, o.Rule.Hook+" "+o.Rule.Chain)
		}
	}
	return slices.Compact(names)
}

// TestTwoNodes: both nodes see each chain that the probe meets, its addresses before and after each translation, and the
// answer. Conntrack's entry has the id of the traces.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	for _, is4 := range []bool{true, false} {
		c := twonodes.New(t, is4, twonodes.NFTables)
		six := map[bool]string{true: "", false: "6"}[is4]
		for _, proto := range []api.Proto{api.TCP, api.UDP} {
			network := strings.ToLower(proto.String())
			stop := c.Server.Serve(network, c.Endpoint)
			all := c.Watch(c.Order("", proto, c.VIP), func() {
				if err := tagged(c.Client, network, c.VIP); err != nil {
					t.Error(err)
				}
			})
			stop()
			want := []string{
				"prerouting prerouting", "prerouting services", "prerouting services6", "prerouting lb-random-1-masquerade-off-cluster", "prerouting lb-dnat",
				"forward forward", "forward forward-unknown", "forward forward", "postrouting postrouting", "postrouting hairpins", "postrouting postrouting",
			}
			if six == "" {
				want = slices.Delete(want, 2, 3)
			}
			if got := chains(all, "node-1", false); !slices.Equal(got, want) {
				t.Errorf("%v %v: node-1 saw\n%q, want\n%q", c.VIP, proto, got, want)
			}
			checkTwoNodes(t, c, proto, all)
		}
	}
}

func checkTwoNodes(t *testing.T, c *twonodes.Cluster, proto api.Proto, all []trace.Observation) {
	t.Helper()
	dnat, answers, entry := 0, map[string]int{}, map[string]bool{}
	for _, o := range all {
		switch {
		case o.Rule != nil && !o.Reply:
			if want := map[bool]string{true: c.VIP.String(), false: c.Endpoint.String()}[o.Node == "node-1" && o.Rule.Hook == "prerouting"]; o.Packet.Dst.String() != want {
				t.Errorf("%v at %s on %s goes to %v, want %s", proto, o.Rule.Place(), o.Node, o.Packet.Dst, want)
			}
			if strings.Contains(o.Rule.Text, "dnat ") && o.Rule.Verdict == "accept" {
				dnat++
			}
			if o.Packet.DSCP != twonodes.Tag {
				t.Errorf("DSCP is %d", o.Packet.DSCP)
			}
		case o.Rule != nil:
			answers[o.Node]++
		case o.Flow != nil:
			entry[fmt.Sprintf("%s %s %v", o.Node, o.Flow.Event, o.Flow.Orig.Dst)] = true
		}
	}
	for _, want := range []string{"node-1 new " + c.VIP.String(), "node-2 new " + c.Endpoint.String()} {
		if !entry[want] {
			t.Errorf("%v: conntrack reported %v, want %s", proto, entry, want)
		}
	}
	if dnat != 1 || answers["node-1"] == 0 || answers["node-2"] == 0 {
		t.Errorf("%v: %d rules translated, want 1; answers %v, want some on each node:\n%s", proto, dnat, answers, describe(all))
	}
}

// TestMasquerade: behind masquerading the second node sees another source, and finds the answer all the same.
func TestMasquerade(t *testing.T) {
	t.Parallel()
	c := twonodes.New(t, true, twonodes.NFTables)
	c.Server.Serve("tcp", c.Endpoint)
	to := netip.AddrPortFrom(c.Nodes[0].Addr(true), 30080)
	all := c.Watch(c.Order("", api.TCP, to), func() {
		if err := tagged(c.Net.Outside, "tcp", to); err != nil {
			t.Error(err)
		}
	})
	own, seen := c.Nodes[0].Addr(true), false
	for _, o := range all {
		if o.Node == "node-1" && o.Flow != nil && o.Flow.Reply.Dst.Addr() == own {
			seen = true // conntrack knows the new source, which no hook of node-1 shows
		}
		if o.Node == "node-2" && !o.Reply && o.Packet != nil && o.Packet.Src.Addr() != own {
			t.Errorf("node-2 saw source %v, want node-1", o.Packet.Src)
		}
	}
	if !seen || len(chains(all, "node-2", true)) == 0 || len(chains(all, "node-1", true)) == 0 {
		t.Errorf("masquerading seen: %v\n%s", seen, describe(all))
	}
}

// TestAffinity: a client's second connection is translated by the rule of the affinity, not by the balancing (fault 17).
func TestAffinity(t *testing.T) {
	t.Parallel()
	c := twonodes.New(t, true, twonodes.NFTables)
	c.Server.Serve("tcp", c.Endpoint)
	c.Sync(func(f *service.Frontend) { f.Affinity = 3 * time.Hour })
	for i, want := range []string{"lb-dnat-affinity", "lb-affinity"} {
		all := c.Watch(c.Order("", api.TCP, c.VIP), func() {
			if err := tagged(c.Client, "tcp", c.VIP); err != nil {
				t.Error(err)
			}
		})
		at := slices.IndexFunc(all, func(o trace.Observation) bool {
			return o.Rule != nil && o.Rule.Verdict == "accept" && strings.Contains(o.Rule.Text, "dnat ip to")
		})
		if at < 0 || all[at].Rule.Chain != want {
			t.Errorf("connection %d was not translated in chain %s:\n%s", i+1, want, describe(all))
		}
	}
}

// TestOthersPackets: packets without the tag, to other ports, and packets that another program traces are not the probe's.
func TestOthersPackets(t *testing.T) {
	t.Parallel()
	c := twonodes.New(t, true, twonodes.NFTables)
	c.Server.Serve("tcp", c.Endpoint)
	c.Run(c.Nodes[0], "table inet other {\nchain c {\ntype filter hook prerouting priority -470;\nmeta nftrace set 1\n}\n}", "nft", "-f", "-")
	all := c.Watch(c.Order("", api.TCP, c.VIP), func() {
		if got := c.Client.Ask("tcp", c.VIP, patience); got.By == "" {
			t.Error(got)
		}
	})
	for _, o := range all {
		if o.Rule != nil || o.Flow != nil {
			t.Errorf("saw %s", describe([]trace.Observation{o}))
		}
	}
}

// TestForeignDrop: another program's rule is named with its text.
func TestForeignDrop(t *testing.T) {
	t.Parallel()
	c := twonodes.New(t, true, twonodes.NFTables)
	c.Run(c.Nodes[0], "table ip firewall {\nchain forward {\ntype filter hook forward priority 10;\ntcp dport 8080 drop comment \"site policy 17\"\n}\n}", "nft", "-f", "-")
	all := c.Watch(c.Order("", api.TCP, c.VIP), func() {
		if err := tagged(c.Client, "tcp", c.VIP); err == nil {
			t.Error("the probe was answered")
		}
	})
	i := slices.IndexFunc(all, func(o trace.Observation) bool { return o.Rule != nil && o.Rule.Verdict == "drop" })
	if i < 0 || all[i].Rule.Place() != "ip firewall forward #2" || all[i].Rule.Text != `tcp dport 8080 drop comment "site policy 17"` || all[i].Rule.Hook != "forward" || all[i].Rule.Priority != 10 {
		t.Errorf("saw\n%s", describe(all))
	}
	if got := chains(all, "node-2", false); len(got) > 0 {
		t.Errorf("node-2 saw %q", got)
	}
}

// TestDrops: the kernel's own reason belongs to the node on which it happened, though the machine has one kernel.
func TestDrops(t *testing.T) {
	t.Parallel()
	c := twonodes.New(t, true, twonodes.NFTables)
	c.Run(c.Nodes[0], "table ip firewall {\nchain forward {\ntype filter hook forward priority 10;\nudp dport 8080 drop\n}\n}", "nft", "-f", "-")
	for proto, want := range map[api.Proto]string{
		api.TCP: "node-2 NO_SOCKET at tcp_v4_rcv in a pod: true",
		api.UDP: "node-1 NETFILTER_DROP at nft_do_chain in a pod: false",
	} {
		all := c.Watch(c.Order("", proto, c.VIP), func() {
			if err := tagged(c.Client, strings.ToLower(proto.String()), c.VIP); err == nil {
				t.Error("the probe was answered")
			}
		})
		var got []string
		for _, o := range all {
			if o.Drop != nil && !o.Reply {
				got = append(got, fmt.Sprintf("%s %s at %s in a pod: %v", o.Node, o.Drop.Reason, o.Drop.Where, o.Drop.Pod))
			}
		}
		if !slices.Equal(got, []string{want}) {
			t.Errorf("%v: dropped %q, want %q", proto, got, want)
		}
	}
}

// TestState: the node of the endpoint reads its sockets, and each node the routes that the probe needed.
func TestState(t *testing.T) {
	t.Parallel()
	for _, is4 := range []bool{true, false} {
		c := twonodes.New(t, is4, twonodes.NFTables)
		c.Server.Serve("tcp", c.Endpoint)
		all := c.Watch(c.Order("", api.TCP, c.VIP), func() {
			if err := tagged(c.Client, "tcp", c.VIP); err != nil {
				t.Error(err)
			}
		})
		for _, o := range all {
			if o.State == nil {
				continue
			}
			to := slices.IndexFunc(o.State.Routes, func(r trace.Route) bool { return r.To == c.Endpoint.Addr() && r.In == "" })
			if to < 0 || o.State.Routes[to].Kind != "unicast" || !o.State.Routes[to].Up || o.State.Routes[to].MTU != 1500 {
				t.Errorf("%s: routes %+v", o.Node, o.State.Routes)
			}
			if here := o.Node == "node-2"; here != (len(o.State.Endpoints) == 1) || here &&
				(!o.State.Endpoints[0].Entered || len(o.State.Endpoints[0].Listeners) != 1 || o.State.Endpoints[0].Listeners[0].Addr != c.Endpoint) {
				t.Errorf("%s: endpoints %+v", o.Node, o.State.Endpoints)
			}
		}
	}
}

// TestEnds: a watch leaves nothing behind: neither after Stop, nor after kill -9.
func TestEnds(t *testing.T) {
	c := twonodes.New(t, true, twonodes.NFTables)
	c.Watch(c.Order("", api.TCP, c.VIP), func() {})
	if left := tables(c); strings.Contains(left, "fairway-path") {
		t.Errorf("after Stop: %s", left)
	}
	var child *exec.Cmd
	c.On(c.Nodes[0], func() error {
		child = exec.Command("/proc/self/exe", "-test.run=^TestChild$")
		child.Env = append(os.Environ(), "FAIRWAY_TEST_ARM=1")
		return child.Start()
	})
	for i := 0; !strings.Contains(tables(c), "fairway-path-child"); i++ {
		if i == 500 {
			t.Fatal("the child did not arm")
		}
		time.Sleep(20 * time.Millisecond) // poll
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	for i := 0; strings.Contains(tables(c), "fairway-path"); i++ {
		if i == 500 {
			t.Fatalf("after kill -9: %s", tables(c))
		}
		time.Sleep(20 * time.Millisecond) // poll: the kernel closes the sockets of a dead process
	}
}

// TestChild is the process that TestEnds kills.
func TestChild(t *testing.T) {
	if os.Getenv("FAIRWAY_TEST_ARM") == "" {
		return
	}
	w, err := observe.Arm(t.Context(), trace.Order{Run: "child", Node: "n", Proto: 6, To: vip, Tag: twonodes.Tag}, observe.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	<-t.Context().Done() // the parent kills this process
}

// TestOrders: a wrong order is refused before the kernel is asked.
func TestOrders(t *testing.T) {
	for _, o := range []trace.Order{{}, {Run: "x y", Proto: 6, To: vip, Tag: 3}, {Run: "x", Proto: 6, To: vip}, {Run: "x", Proto: 132, To: vip, Tag: 3}} {
		if _, err := observe.Arm(t.Context(), o, observe.Config{}); err == nil || !strings.Contains(err.Error(), "[") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func tables(c *twonodes.Cluster) string { return c.Run(c.Nodes[0], "", "nft", "list", "tables") }

var vip = netip.MustParseAddrPort("10.96.0.1:80")
