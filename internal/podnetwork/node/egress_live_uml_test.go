//go:build uml

package node

import (
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// TestWireGuardEgressChangesLive is TestEgressChangesLive to and from encryption.
func TestWireGuardEgressChangesLive(t *testing.T) {
	c := newCarried(t, plan.WayVXLAN)
	c.serveFar()
	c.sync()
	c.carry()
	c.sync()
	everybody := c.leaveAndStay(c.machines[2])
	everybody("at first")
	start, later := time.Now(), time.Duration(0)
	for _, way := range []plan.Way{plan.WayWireGuard, plan.WayBGP, plan.WayWireGuard, plan.WayVXLAN} {
		c.changeAll(way, func() time.Time { return start.Add(later) }, c.carry, everybody, func(d time.Duration) { later += d })
		if way != plan.WayBGP { // the tunnel stays for egress
			c.wantWay(way)
		}
	}
}
