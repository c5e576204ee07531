package bgp

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// TestAggregate: a packet to an address of an aggregate that no Service has reaches the node once. It does not go round
// between the node and its router, also after the speaker was killed. The Service answers all clients. The rules go with
// the last aggregate.
func TestAggregate(t *testing.T) {
	r := newRack(t, 1)
	r.router("", "")
	m := r.nodes[0]
	length := func(v4, v6 int) { m.world.Ads[0].AggregationLength, m.world.Ads[0].AggregationLengthV6 = v4, v6 }
	routes := func() string {
		return r.run(r.net.Fabric, "ip", "-4", "route") + r.run(r.net.Fabric, "ip", "-6", "route")
	}
	unassigned := func(when string) {
		t.Helper()
		for _, a := range []string{"192.0.2.1", "2001:db8:2::11"} {
			to := netip.MustParseAddr(a)
			forwarded := r.net.Fabric.CountForwarded(to)
			must(t, r.net.Outside.Ping(to))
			if n := forwarded(); n != 1 {
				t.Errorf("%s: the router forwarded a ping to %v %d times", when, to, n)
			}
			forwarded = r.net.Fabric.CountForwarded(to)
			must(t, m.Ping(to))
			if n := forwarded(); n > 1 {
				t.Errorf("%s: the router forwarded the node's ping to %v %d times", when, to, n)
			}
		}
	}
	length(28, 124)
	r.start(0)
	await(t, routes, "192.0.2.0/28", "2001:db8:2::10/124")
	unassigned("at the start")
	r.answered(vip4)
	r.answered(vip6)
	r.kill(0)
	r.start(0)
	await(t, routes, "192.0.2.0/28", "2001:db8:2::10/124")
	unassigned("after a kill")
	length(32, 128)
	r.tell(0)
	r.until(vip4, "node-1")
	r.until(vip6, "node-1")
	for range 100 {
		if m.Do(exec.Command("nft", "list", "table", "inet", numbers.TableAggregates).Run) != nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("without an aggregate the rules are still there:\n%s", strings.TrimSpace(r.run(m.Namespace, "nft", "list", "ruleset")))
}
