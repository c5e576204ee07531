package conformance

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

// ports: where the node masquerades, it draws the source port. Otherwise two clients with one port, whose first packets
// come at one time, would get one connection. Conntrack notices that when it confirms the second, and drops its packet
// (insert_failed). A UDP client would wait in vain.
func (s suite) ports(t testing.TB) {
	r := sixRig(t, s)
	report(t, r.sync(tableOf(web("web", "10.96.0.1:80", api.TCP, 0), web("dns", "10.96.0.1:53", api.UDP, 0))))
	outside := r.hosts[scenario.World.Outside.V4]
	for network, at := range map[string]string{"tcp": "10.96.0.1:80", "udp": "10.96.0.1:53"} {
		drawn, last := 0, netip.AddrPort{}
		for range 4 { // a drawn port equals the client's once in thousands of times
			c, err := outside.Dial(network, netip.MustParseAddrPort(at), s.patience)
			if err != nil {
				t.Fatal(err)
			}
			last = c.LocalAddr()
			got := c.Ask(s.patience)
			c.Close()
			if got.By == "" {
				t.Fatalf("%s to %s: %v", network, at, got)
			}
			if got.Seen.Port() != last.Port() {
				drawn++
			}
		}
		if drawn == 0 {
			t.Errorf("%s to %s: the endpoint sees the client's port behind the node's address four times, last of %v", network, at, last)
		}
	}
}
