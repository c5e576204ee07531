//go:build uml

package node

import (
	"testing"
	"time"
)

// TestWireGuardEgressChangesLive is TestEgressChangesLive to and from encryption.
func TestWireGuardEgressChangesLive(t *testing.T) {
	c := newCarried(t, WayVXLAN)
	c.serveFar()
	c.sync()
	c.carry()
	c.sync()
	everybody := c.leaveAndStay(c.machines[2])
	everybody("at first")
	start, later := time.Now(), time.Duration(0)
	for _, way := range []Way{WayWireGuard, WayBGP, WayWireGuard, WayVXLAN} {
		c.changeAll(way, func() time.Time { return start.Add(later) }, c.carry, everybody, func(d time.Duration) { later += d })
		if way != WayBGP { // the tunnel stays for egress
			c.wantWay(way)
		}
	}
}
