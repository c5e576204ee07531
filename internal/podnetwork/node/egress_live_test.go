package node

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// serveFar makes a server in the first subnet, with an echo, to which pods leave by node 1.
func (c *cluster) serveFar() {
	c.t.Helper()
	c.outside = newNamespace(c.t)
	c.plug(c.outside, "br0", "out", "192.0.2.99/24", "2001:db8:0::99/64")
	c.outside.serve()
	c.outside.echo()
}

// leaveAndStay begins to talk to the server outside from pods that leave by node 1 with egress addresses. It returns what goes on with
// that, and begins anew: new connections have the egress address too.
func (c *cluster) leaveAndStay(of ...*machine) (everybody func(when string)) {
	c.t.Helper()
	pods := map[*pod]*machine{}
	for _, m := range of {
		pods[m.newPod()] = m
	}
	c.leaveBy(c.machines[0], pods)
	servers := []netip.Addr{outside4, outside6}
	var talks []*talk
	for p, m := range pods {
		for _, server := range servers {
			talks = append(talks, newTalk(fmt.Sprintf("%s to %v", m.peer.Name, server), p, server))
		}
	}
	return func(when string) {
		c.t.Helper()
		for _, k := range talks {
			k.goOn(when)
		}
		for p, m := range pods {
			for k, server := range servers {
				p.wantSource(fmt.Sprintf("a new connection of %s, %s", m.peer.Name, when), server, egressOf(p.addrs[k]))
			}
		}
	}
}

// changeAll changes one node after the other to another way; carry is what routers hear then. everybody talks after each step.
func (c *cluster) changeAll(way plan.Way, clock func() time.Time, carry func(), everybody func(string), pass func(time.Duration)) {
	c.t.Helper()
	all := func(when string) {
		c.t.Helper()
		carry()
		for _, m := range c.machines {
			m.mustSync(c.peers())
			everybody(fmt.Sprintf("when %s %s %s", m.peer.Name, when, way))
		}
	}
	for _, m := range c.machines {
		c.change(m, way, clock, everybody)
		pass(50 * time.Second) // the last one is almost two minutes late
		all("is on the way to")
	}
	for range 3 { // longer than all times of transition, in any order of the nodes
		pass(140 * time.Second)
		all("settles with")
	}
	pass(2 * transition)
	all("has settled with")
	c.sync()
}

// TestEgressChangesLive: connections out of the cluster with an egress address go on, and new ones have it, while one node after
// the other changes to another way to reach pods, from the gateway's subnet and from another one.
func TestEgressChangesLive(t *testing.T) {
	for _, test := range []struct {
		name string
		from int // the pod's node
		ways []plan.Way
	}{
		{"a neighbour", 1, []plan.Way{plan.WayRoutes, plan.WayVXLAN, plan.WayAuto, plan.WayBGP, plan.WayRoutes}},
		{"another subnet", 2, []plan.Way{plan.WayVXLAN, plan.WayBGP, plan.WayAuto, plan.WayBGP, plan.WayVXLAN}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCarried(t, test.ways[0])
			c.serveFar()
			c.sync()
			c.carry()
			c.sync()
			everybody := c.leaveAndStay(c.machines[test.from])
			everybody("at first")
			later := time.Duration(0)
			for _, way := range test.ways[1:] {
				c.changeAll(way, func() time.Time { return time.Now().Add(later) }, c.carry, everybody, func(d time.Duration) { later += d })
			}
		})
	}
}
