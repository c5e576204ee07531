package layer2

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/ipc/podroutes"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// TestOwnersByRouters: an address that routers lead to nodes has no owner, even if a node holds it.
func TestOwnersByRouters(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.200")
	for _, held := range []bool{false, true} {
		o := owners{egress: []netip.Addr{a}}
		o.set(claimView{self: "n1", decisions: map[netip.Addr]*announce.Decision{a: {Addr: a, Egress: true, Routed: true}}})
		if got := o.current("n1", func(netip.Addr) bool { return held })[a]; got != podroutes.ByRouters {
			t.Errorf("held %t: the owner is %q", held, got)
		}
	}
}
