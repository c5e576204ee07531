package enforcer

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/isolate"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// both are an address of each family, by a number.
func both(n byte) []netip.Addr {
	six := netip.MustParseAddr("fd00:10:244:1::").As16()
	six[15] = n
	return []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 1, n}), netip.AddrFrom16(six)}
}

const reusedPort = 8080

// host is a pod's namespace that serves at addresses of both families. Which pods say that they have them is another thing.
func (r *rig) host(name string, number byte) *testnet.Host {
	h := r.net.Pod(r.node, name, both(number)...)
	for _, a := range h.Addrs {
		h.Serve("tcp", netip.AddrPortFrom(a, reusedPort))
	}
	return h
}

// is says that a pod has these addresses.
func (r *rig) is(name, app, node string, created int64, addrs ...netip.Addr) {
	r.source.setPod(&api.Pod{Name: api.Name{Namespace: "default", Name: name}, UID: name, Node: node, Created: time.Unix(created, 0),
		Labels: map[string]string{"app": app}, Addrs: addrs})
}

// isolates lets only pods of one app into those of another one; nobody, if that is empty.
func (r *rig) isolates(app, peer string) api.Name {
	p := &networkpolicy.Policy{Name: api.Name{Namespace: "default", Name: app}, Selector: selects(app), Isolates: [2]bool{networkpolicy.Ingress: true}}
	if selector := selects(peer); peer != "" {
		p.Rules[networkpolicy.Ingress] = []networkpolicy.Rule{{Peers: []networkpolicy.Peer{{Pods: &selector}}}}
	}
	r.source.setPolicy(p.Name, p)
	return p.Name
}

func selects(app string) api.Selector {
	return api.Selector{Requirements: []api.Requirement{{Key: "app", Op: api.In, Values: []string{app}}}}
}

// written waits until the kernel has what the objects say by now: the agent answers in order.
func (r *rig) written() {
	r.Helper()
	r.askUntil(isolate.Request{Command: isolate.Delete, Container: "none"})
}

// talks wants an answer, or silence, in both families.
func (r *rig) talks(what string, from, to *testnet.Host, want bool) {
	r.Helper()
	patience := 30 * time.Second
	if !want {
		patience = testnet.Patience
	}
	var asking sync.WaitGroup
	for i, a := range to.Addrs {
		asking.Go(func() {
			if got := from.Ask("tcp", netip.AddrPortFrom(a, reusedPort), patience); (got.Outcome == testnet.Answered) != want {
				r.Errorf("%s: from %v to %v: want allowed %v, and %v", what, from.Addrs[i], a, want, got)
			}
		})
	}
	asking.Wait()
}

// open opens a connection in each family.
func (r *rig) open(from, to *testnet.Host) (all []*testnet.Conn) {
	r.Helper()
	for _, a := range to.Addrs {
		all = append(all, r.connect(from, netip.AddrPortFrom(a, reusedPort)))
	}
	return all
}

// The address of a pod that has finished is another pod's. As a peer: what the former was allowed, the new one is not; the
// former's connections end, those of others live on.
func TestReusedPeer(t *testing.T) {
	r := newRig(t)
	web, reused, lasting := r.host("web", 10), r.host("reused", 11), r.host("lasting", 12)
	r.is("web", "web", "node-1", 1, web.Addrs...)
	r.is("lasting", "client", "node-2", 1, lasting.Addrs...)
	r.is("job", "client", "node-2", 1, reused.Addrs...)
	r.isolates("web", "client")
	r.written()
	ends, lives := r.open(reused, web), r.open(lasting, web)
	r.is("job", "client", "node-2", 1) // finished
	for _, c := range ends {
		if err := c.Wait(30 * time.Second); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a connection of the pod that has finished ends with %v, want a reset", err)
		}
	}
	r.talks("nobody has the address", reused, web, false)
	r.is("stranger", "stranger", "node-2", 2, reused.Addrs...)
	r.written()
	r.talks("a stranger has the address", reused, web, false)
	r.is("stranger", "stranger", "node-2", 2)
	r.is("job-2", "client", "node-2", 3, reused.Addrs...)
	r.written()
	r.talks("a client has it again", reused, web, true)
	// The end of the one is heard of after the beginning of the other.
	ends = r.open(reused, web)
	r.is("stranger-2", "stranger", "node-2", 4, reused.Addrs...)
	for _, c := range ends {
		if err := c.Wait(30 * time.Second); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a connection of the older of two pods with an address ends with %v, want a reset", err)
		}
	}
	r.talks("two pods have the address", reused, web, false)
	r.is("job-2", "client", "node-2", 3)
	r.written()
	r.talks("the older one of them has finished", reused, web, false)
	for _, c := range lives {
		if a := c.Ask(30 * time.Second); a.Outcome != testnet.Answered {
			t.Errorf("a connection that was never forbidden: %v", a)
		}
	}
}

// As a pod of this node: the plugin gives the address to another pod while the API server still shows the former one with it,
// which may even be the younger one. What isolates the one does not isolate the other.
func TestReusedAddress(t *testing.T) {
	r := newRig(t)
	reused, client := r.host("reused", 10), r.host("client", 11)
	r.is("client", "client", "node-2", 1, client.Addrs...)
	r.isolates("closed", "")
	born := func(name, container string) {
		t.Helper()
		r.ask(isolate.Request{Command: isolate.Add, Pod: "default/" + name, UID: name, Container: container, Addrs: reused.Addrs})
	}
	r.is("job", "closed", "node-1", 9)
	born("job", "a")
	r.is("job", "closed", "node-1", 9, reused.Addrs...)
	r.written()
	r.talks("a closed pod", client, reused, false)
	r.ask(isolate.Request{Command: isolate.Delete, Container: "a"})
	r.is("free", "free", "node-1", 1)
	born("free", "b")
	r.talks("a free pod where a closed one was", client, reused, true)
	lives := r.open(client, reused)
	r.is("free", "free", "node-1", 1, reused.Addrs...)
	r.is("job", "closed", "node-1", 9) // finished, as is heard now
	r.written()
	r.talks("a free pod, and the closed one has finished", client, reused, true)
	for _, c := range lives {
		if a := c.Ask(30 * time.Second); a.Outcome != testnet.Answered {
			t.Errorf("its connection: %v", a)
		}
	}
	// Without DEL: the agent did not hear it.
	r.is("job-2", "closed", "node-1", 0)
	born("job-2", "c")
	for _, c := range lives {
		if err := c.Wait(30 * time.Second); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a connection to the pod that was there before a closed one ends with %v, want a reset", err)
		}
	}
	r.talks("a closed pod where a free one was, that the API server still shows", client, reused, false)
	born("unknown", "d")
	r.talks("a pod that is not known yet", client, reused, false)
}

// CVE-2024-7598: a namespace is deleted, and its policies before its pods. Nothing opens, what is allowed lives on, and the
// policy goes with the pods.
func TestNamespaceDeletion(t *testing.T) {
	r := newRig(t)
	web, client, stranger := r.host("web", 10), r.host("client", 11), r.host("stranger", 12)
	namespace := func(terminating bool) {
		r.source.change(func() {
			r.source.Namespaces["default"] = &api.Namespace{Name: "default", Terminating: terminating}
			r.source.changed.Namespaces = append(r.source.changed.Namespaces, "default")
		})
	}
	namespace(false)
	r.is("web", "web", "node-1", 1, web.Addrs...)
	r.is("client", "client", "node-2", 1, client.Addrs...)
	name := r.isolates("web", "client")
	r.written()
	r.talks("before the deletion", stranger, web, false)
	lives := r.open(client, web)
	namespace(true)
	r.source.setPolicy(name, nil)
	r.written()
	r.talks("the policy is gone", stranger, web, false)
	r.talks("the policy is gone", client, web, true)
	for _, c := range lives {
		if a := c.Ask(30 * time.Second); a.Outcome != testnet.Answered {
			t.Errorf("the client's connection: %v", a)
		}
	}
	gone := api.Name{Namespace: "default", Name: "web"}
	r.source.change(func() {
		delete(r.source.Pods, gone)
		r.source.changed.Pods = append(r.source.changed.Pods, gone)
	})
	other := api.Name{Namespace: "other", Name: "web"}
	r.source.setPod(&api.Pod{Name: other, UID: "other", Node: "node-1", Labels: map[string]string{"app": "web"}, Addrs: web.Addrs})
	r.written()
	r.talks("another namespace's pod has the address", stranger, web, true)
}
