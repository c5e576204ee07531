package health

import (
	"net/netip"
	"slices"
	"testing"
)

// TestLoopbacks: programs of the node are answered on loopback, in the families that have
// NodePorts, unless all addresses are served anyway.
func TestLoopbacks(t *testing.T) {
	at := func(network, addr string) listenAddr {
		return listenAddr{network: network, addr: netip.MustParseAddr(addr)}
	}
	lo := func(addr string) listenAddr {
		return listenAddr{network: "tcp", addr: netip.MustParseAddr(addr), optional: true}
	}
	for _, c := range []struct{ at, want []listenAddr }{
		{nil, nil},
		{[]listenAddr{at("tcp", "192.168.49.2")}, []listenAddr{lo("127.0.0.1")}},
		{[]listenAddr{at("tcp", "192.168.49.2"), at("tcp", "fd00::2")}, []listenAddr{lo("127.0.0.1"), lo("::1")}},
		{[]listenAddr{at("tcp4", "0.0.0.0"), at("tcp", "fd00::2")}, []listenAddr{lo("::1")}},
		{[]listenAddr{at("tcp4", "0.0.0.0")}, nil},
	} {
		if got := loopbacks(c.at); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.at, got, c.want)
		}
	}
}
