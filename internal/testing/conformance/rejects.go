package conformance

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// A Rejection is the socket error of a client that calls a Service, if a NetworkPolicy rejects the packet.
type Rejection map[api.Proto][]error

// Rejections are the errors in all modes whose packets pass the hook forward. TCP gets a reset, and UDP gets ICMP
// "administratively prohibited", which is another error for IPv4 than for IPv6.
var Rejections = Rejection{api.TCP: {unix.ECONNREFUSED}, api.UDP: {unix.EHOSTUNREACH, unix.EACCES}}

// RunRejects checks that clients of Services are refused at once if a NetworkPolicy denies them and policies reject. A
// socket ignores packets from other addresses than the one it called. So a reset or an ICMP error from the endpoint's
// address would be silence.
func RunRejects(t *testing.T, open OpenGated, at map[string]Rejection) {
	p := newPolicies(t, open)
	p.kernel.Reject = true
	for _, name := range []string{"1", "2"} {
		for _, space := range []string{"x", "y", "z"} {
			full := api.Name{Namespace: space, Name: name}
			if node, addrs := p.Place(full); len(addrs) > 0 {
				p.compiler.SetPod(full, &api.Pod{Name: full, Node: node, Addrs: addrs})
			}
		}
	}
	// No client reaches the pods of the Services, and z/1 reaches no pod.
	for _, space := range []string{"x", "y", "z"} {
		deny := &networkpolicy.Policy{Name: api.Name{Namespace: space, Name: "deny"}}
		deny.Isolates[networkpolicy.Ingress], deny.Isolates[networkpolicy.Egress] = space != "z", space == "z"
		p.compiler.SetPolicy(deny.Name, deny)
	}
	if err := p.enforce(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range policyPods {
		for _, is4 := range []bool{true, false} {
			targets := policyTargets(i, is4)
			for what, client := range map[string]netip.Addr{"egress": scenario.World.Pod.Addr(is4), "ingress": scenario.World.Outside.Addr(is4)} {
				if what == "ingress" && p.rig.hosts[targets[2].Addr()].Node() != p.rig.node {
					continue // the other node decides, and has no policies in this test
				}
				for way, to := range map[string]netip.AddrPort{"ClusterIP": targets[0], "NodePort": targets[1], "endpoint": targets[2]} {
					if what == "ingress" && way == "ClusterIP" {
						continue // a client outside has no route to the pod
					}
					for _, proto := range []api.Proto{api.TCP, api.UDP} {
						wg.Go(func() { p.rejected(t, what+" to a "+way, proto, client, to, at[way][proto]) })
					}
				}
			}
		}
	}
}

// rejected sends a request, and wants one of the errors. No errors: the request must get no answer.
func (p *policies) rejected(t *testing.T, what string, proto api.Proto, client netip.Addr, to netip.AddrPort, want []error) {
	patience := 20 * time.Second
	if want == nil {
		patience = testnet.Patience
	}
	got := p.rig.hosts[client].Ask(network(proto), to, patience)
	heard := want == nil && got.Outcome == testnet.Dropped
	for _, err := range want {
		heard = heard || errors.Is(got.Err, err)
	}
	if !heard {
		t.Errorf("%v, %s: %v to %v: %v (%v), want one of %v", proto, what, client, to, got, got.Err, want)
	}
}
