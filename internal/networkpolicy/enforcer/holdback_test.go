package enforcer

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/ipc/isolate"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestRestartBesideAnEmptyAPI: a starting agent finds far fewer policies at the API server than the kernel enforces. Pods
// stay isolated until this has lasted for a while, or the policies are there again.
func TestRestartBesideAnEmptyAPI(t *testing.T) {
	r := newRig(t)
	h := newHoldback(r)
	policy := r.source.Policies[denyAll]
	r.restart(func() { r.source.setPolicy(denyAll, nil) }, time.Hour)
	h.held("without policies")
	err := r.tryAsk(isolate.Request{Command: isolate.Add, Pod: "default/new", UID: "new", Container: "new", Addrs: []netip.Addr{netip.MustParseAddr("10.244.9.9")}})
	if err == nil || !strings.Contains(err.Error(), "API server lacks") {
		t.Errorf("a pod that starts meanwhile: %v", err)
	}
	r.source.setPolicy(denyAll, policy)
	r.written()
	h.kept(0)
	r.restart(func() { r.source.setPolicy(denyAll, nil) }, time.Second)
	r.written()
	h.kept(0)
	if a := h.stranger.Ask("tcp", h.at, 20*time.Second); a.Outcome != testnet.Answered {
		t.Errorf("when the API server has said the same for --empty-after: %v", a)
	}
}

// TestRestartWithoutPods: a starting agent finds none of the node's pods at the API server. Their connections go on.
func TestRestartWithoutPods(t *testing.T) {
	r := newRig(t)
	h := newHoldback(r)
	lasting := r.connect(h.client, h.at)
	pods := r.source.Pods
	r.restart(func() { r.source.change(func() { r.source.Pods = map[api.Name]*api.Pod{} }) }, time.Hour)
	h.held("without pods")
	if a := lasting.Ask(20 * time.Second); a.Outcome != testnet.Answered {
		t.Errorf("a connection that policies allow: %v", a)
	}
	for _, p := range pods {
		r.source.setPod(p)
	}
	r.written()
	h.kept(0)
	if a := lasting.Ask(20 * time.Second); a.Outcome != testnet.Answered {
		t.Errorf("a connection that policies allow, when the pods are there again: %v", a)
	}
}

// A holdback has the pods web, client and stranger, which the CNI plugin has made. Only client may connect to web.
type holdback struct {
	*rig
	client, stranger *testnet.Host
	at               netip.AddrPort
}

func newHoldback(r *rig) *holdback {
	h := &holdback{rig: r, at: netip.AddrPortFrom(webAddr, 8080)}
	for name, addr := range map[string]netip.Addr{"web": webAddr, "client": clientAddr, "stranger": otherAddr} {
		pod := r.pod(name, addr, map[string]string{"app": name})
		r.ask(isolate.Request{Command: isolate.Add, Pod: "default/" + name, UID: name, Container: name, Addrs: []netip.Addr{addr}})
		switch name {
		case "web":
			pod.Serve("tcp", h.at)
		case "client":
			h.client = pod
		default:
			h.stranger = pod
		}
	}
	p := &networkpolicy.Policy{Name: denyAll, Isolates: [2]bool{networkpolicy.Ingress: true}}
	peer := selects("client")
	p.Rules[networkpolicy.Ingress] = []networkpolicy.Rule{{Peers: []networkpolicy.Peer{{Pods: &peer}}}}
	r.source.setPolicy(denyAll, p)
	r.written()
	return h
}

// restart ends the agent, changes the API server's objects, and starts another agent.
func (r *rig) restart(change func(), emptyAfter time.Duration) {
	r.kill()
	change()
	r.emptyAfter = emptyAfter
	r.start()
}

// held checks that the agent has told of the doubt, and that the kernel enforces what it did.
func (h *holdback) held(what string) {
	h.Helper()
	select {
	case p := <-h.problems:
		if p.Reason != "ListLostObjects" {
			h.Errorf("%s: event %v", what, p)
		}
	case <-time.After(20 * time.Second):
		h.Errorf("%s: no event", what)
	}
	h.kept(3)
	if a := h.stranger.Ask("tcp", h.at, testnet.Patience); a.Outcome != testnet.Dropped {
		h.Errorf("%s: a connection that policies denied: %v", what, a)
	}
	if a := h.client.Ask("tcp", h.at, 20*time.Second); a.Outcome != testnet.Answered {
		h.Errorf("%s: a connection that policies allowed: %v", what, a)
	}
}

// kept checks the metric of addresses that keep their rules.
func (h *holdback) kept(want float64) {
	h.Helper()
	families, err := h.registry.Gather()
	for _, f := range families {
		if f.GetName() == "fairway_policy_kept_addresses" && f.GetMetric()[0].GetGauge().GetValue() == want {
			return
		}
	}
	h.Errorf("not %v addresses keep their rules (%v)", want, err)
}
