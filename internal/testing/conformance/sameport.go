package conformance

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// samePort: a kernel may give a client one port for a connection to a Service and for a connection to its endpoint,
// because the destinations differ. Behind the Service they would be one connection. Both must work, in either order, at
// once and one after the other.
func (s suite) samePort(t testing.TB) {
	r := sixRig(t, s)
	report(t, r.sync(tableOf(web("web", "10.96.0.1:80", api.TCP, 0))))
	client := r.hosts[scenario.World.Pod.V4]
	if err := client.Sysctl("ipv4/ip_local_port_range", "40000 40000"); err != nil {
		t.Fatal(err)
	}
	for _, order := range [][]netip.AddrPort{
		{netip.MustParseAddrPort("10.96.0.1:80"), six()[0].Addr},
		{six()[0].Addr, netip.MustParseAddrPort("10.96.0.1:80")},
	} {
		for range 2 { // conntrack knows all tuples the second time
			var conns []*testnet.Conn
			for _, to := range order {
				c, err := client.Dial("tcp", to, s.patience)
				if err != nil {
					t.Fatalf("to %v after %v: %v", to, order[0], err)
				}
				if p := c.LocalAddr().Port(); p != 40000 {
					t.Fatalf("the client has port %d", p)
				}
				conns = append(conns, c)
			}
			for range 2 {
				for i, c := range conns {
					if got := c.Ask(s.patience); got.Outcome != testnet.Answered {
						t.Errorf("to %v, with one to the other: %v", order[i], got)
					}
				}
			}
			for _, c := range conns {
				c.Close()
			}
		}
	}
}
