package userspace_test

import (
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func openGated(t testing.TB, gate *flow.Gate) conformance.Datapath {
	dp, err := userspace.New(userspace.Config{Gate: gate})
	must(t, err)
	return dp
}

func TestPolicies(t *testing.T) { conformance.RunPolicies(t, openGated) }

// A client of a Service gets a connection before the proxy chooses an endpoint, and then a reset. UDP gets no answer.
// Other packets go to the kernel.
func TestRejects(t *testing.T) {
	proxy := conformance.Rejection{api.TCP: {unix.ECONNRESET}}
	conformance.RunRejects(t, openGated, map[string]conformance.Rejection{"ClusterIP": proxy, "NodePort": proxy, "endpoint": conformance.Rejections})
}

// A connection that the Gate no longer allows is ended, and an allowed endpoint serves the next one. Before the first
// decision, no endpoint is called.
func TestGate(t *testing.T) {
	r, gate := newRig(t, 2), &flow.Gate{}
	r.dp = openGated(t, gate)
	for i := range r.pods {
		r.pods[i].Serve("tcp", r.at(i))
		r.pods[i].Serve("udp", r.at(i))
	}
	var forbidden atomic.Pointer[netip.AddrPort]
	for _, network := range []string{"tcp", "udp"} {
		proto := api.TCP
		if network == "udp" {
			proto = api.UDP
		}
		r.sync(r.service(proto, 0, 1))
		gate.Decide(nil)
		if a := r.outside.Ask(network, nodePort, testnet.Patience); a.Outcome == testnet.Answered {
			t.Errorf("%s: before anybody decided: %v", network, a)
		}
		forbidden.Store(&netip.AddrPort{})
		gate.Decide(func(_ api.Proto, client netip.Addr, endpoint netip.AddrPort) bool {
			return endpoint != *forbidden.Load()
		})
		c, err := r.outside.Dial(network, nodePort, patience)
		must(t, err)
		defer c.Close()
		first := c.Ask(patience)
		if first.Outcome != testnet.Answered {
			t.Fatalf("%s: %v", network, first)
		}
		if client := first.Seen; gate.Carries(proto, client, nodePort) {
			t.Errorf("%s: the proxy carries a connection of its own, from %v", network, client)
		}
		if !gate.Carries(proto, c.LocalAddr(), nodePort) || gate.Carries(proto, c.LocalAddr(), vip) {
			t.Errorf("%s: the proxy must carry that to %v, and no other", network, nodePort)
		}
		if n := gate.EndRefused(); n != 0 {
			t.Errorf("%s: %d connections ended, and all are allowed", network, n)
		}
		forbidden.Store(&first.At)
		if n := gate.EndRefused(); n != 1 {
			t.Errorf("%s: %d connections ended, want 1", network, n)
		}
		for range 10 {
			if a := r.outside.Ask(network, nodePort, patience); a.Outcome != testnet.Answered || a.At == first.At {
				t.Errorf("%s: a client gets %v, and %v is forbidden", network, a, first.At)
			}
		}
	}
}
