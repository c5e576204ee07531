package edge_test

import (
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestEdgeInstances: connections go to the nodes' NodePorts, as many as each has pods for, and go on
// while the edge is killed and comes back.
func TestEdgeInstances(t *testing.T) {
	l := newEdgeLab(t, 1, 1, 4)
	path := l.config(steady)
	l.start("--config", path)
	l.programmed()
	for _, at := range []netip.AddrPort{localVIP, clusterVIP} {
		if a := l.ask(at); !answered(a) || a.Seen.Addr() != l.edge.Addr(true) && at == localVIP {
			t.Errorf("%v: %v, want an answer of one that saw the edge, which masquerades", at, a)
		}
	}
	if a := l.ask(podVIP); a.Outcome != testnet.Refused || !strings.Contains(l.log.String(), "NoNodePort") {
		t.Errorf("a Service without node ports: %v, and the log is to say why", a)
	}
	for _, none := range []string{"192.0.2.10:81", "192.0.2.99:80"} {
		if a := l.net.Outside.Ask("tcp", netip.MustParseAddrPort(none), testnet.Patience); a.Outcome != testnet.Dropped {
			t.Errorf("%s, which no Service has: %v, want silence and no way back", none, a)
		}
	}
	l.even(localVIP)

	if n := l.status(); !n.OK() || !strings.HasSuffix(n.Node, " (edge)") || n.Mode != "nftables" || n.Services != 3 {
		t.Errorf("fairway status: %+v", n)
	}

	c, err := l.net.Outside.Dial("tcp", localVIP, 10*time.Second)
	l.must(err)
	defer c.Close()
	kept := c.Ask(10 * time.Second)
	l.kill()
	if a, b := c.Ask(10*time.Second), l.ask(localVIP); a.By != kept.By || !answered(b) {
		t.Errorf("while no edge runs: an open connection %v, was %v; a new one %v", a, kept, b)
	}
	l.start("--config", path)
	l.programmed()
	if a, b := c.Ask(10*time.Second), l.ask(localVIP); a.By != kept.By || !answered(b) {
		t.Errorf("after a restart: an open connection %v, was %v; a new one %v", a, kept, b)
	}
	if !strings.Contains(l.log.String(), "changed=0 added=0 deleted=0") {
		t.Errorf("the restart rewrote rules")
	}
	l.kill()
	if tables, routes := l.cleanup(path); tables != "" || routes != "" {
		t.Errorf("left after cleanup: %q, routes %q", tables, routes)
	}
}

// TestEdgeHealth: a node that says no, is silent or is excluded gets no new connection, and keeps
// those it has.
func TestEdgeHealth(t *testing.T) {
	l := newEdgeLab(t, 1, 1, 1)
	l.start("--config", l.config(soon))
	l.programmed()
	var open []*testnet.Conn
	var kept []testnet.Answer
	for range 20 {
		c, err := l.net.Outside.Dial("tcp", localVIP, patient)
		l.must(err)
		defer c.Close()
		open, kept = append(open, c), append(kept, c.Ask(patient))
	}
	l.nodes[2].local.Store(0)
	l.until(localVIP, "no answer of node-3, which has no endpoints", l.never(localVIP, 2))
	l.nodes[2].local.Store(1)
	l.until(localVIP, "node-3 again", func(a testnet.Answer) bool { return l.nodeOf(a.By) == 2 })

	l.nodes[0].status.Store(0)
	l.until(localVIP, "no answer of node-1, which is silent", l.never(localVIP, 0))
	excluded := l.nodes[1].object.DeepCopy()
	excluded.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
	l.api.set(excluded)
	l.until(localVIP, "answers of node-3 alone", l.never(localVIP, 0, 1))

	l.nodes[2].local.Store(0)
	l.until(localVIP, "answers of node-1, which is silent, as no other may be used", l.never(localVIP, 1, 2))
	for _, n := range l.nodes {
		n.status.Store(http.StatusServiceUnavailable)
		n.local.Store(0)
	}
	l.until(localVIP, "a refusal, as all nodes say no", func(a testnet.Answer) bool { return a.Outcome == testnet.Refused })
	for i, c := range open {
		if a := c.Ask(patient); a.By != kept[i].By {
			t.Errorf("an open connection: %v, was %v", a, kept[i])
		}
	}
}

// TestEdgePods: connections go straight to pods, which see the client, by routes to the nodes' podCIDRs.
func TestEdgePods(t *testing.T) {
	l := newEdgeLab(t, 1, 1, 4)
	for _, n := range l.nodes { // answers to the client's network go through the edge
		l.must(n.Do(func() error {
			return exec.Command("ip", "route", "add", "198.51.100.0/24", "via", l.edge.Addr(true).String()).Run()
		}))
	}
	path := l.config("targetType: ip", "routes: static", "clusterCIDRs: [10.244.0.0/16]")
	l.start("--config", path)
	l.programmed()
	for _, at := range []netip.AddrPort{podVIP, localVIP} {
		if a := l.ask(at); !answered(a) || a.Seen.Addr() != testnet.Outside4 {
			t.Errorf("%v: %v, want an answer of a pod that saw %v", at, a, testnet.Outside4)
		}
	}
	if a := l.pods["pod-1-0"].Ask("tcp", podVIP, patient); !answered(a) || a.Seen.Addr() != l.edge.Addr(true) {
		t.Errorf("a pod calls the address: %v, want an answer of a pod that saw the edge", a)
	}
	if a := l.nodes[0].Ask("tcp", podVIP, patient); !answered(a) || a.Seen.Addr() != l.edge.Addr(true) {
		t.Errorf("a node calls the address: %v, want an answer of a pod that saw the edge", a)
	}
	l.even(podVIP)
	l.routesAre("to nodes' pods", "10.244.1.0/24 via 172.18.0.12 dev eth0", "10.244.2.0/24 via 172.18.0.13 dev eth0", "10.244.3.0/24 via 172.18.0.14 dev eth0")
	l.kill()
	if tables, routes := l.cleanup(path); tables != "" || routes != "" {
		t.Errorf("left after cleanup: %q, routes %q", tables, routes)
	}
}

// status asks the edge's machine what fairway status asks there.
func (l *edgeLab) status() (n status.Node) {
	l.t.Helper()
	l.must(l.edge.Do(func() (err error) {
		n, err = status.Ask(l.t.Context())
		return err
	}))
	return n
}

// never returns what reports whether 30 connections in a row are answered, none of them by the
// nodes.
func (l *edgeLab) never(at netip.AddrPort, nodes ...int) func(testnet.Answer) bool {
	return func(testnet.Answer) bool {
		for range 30 {
			a := l.ask(at)
			for _, n := range nodes {
				if !answered(a) || l.nodeOf(a.By) == n {
					return false
				}
			}
		}
		return true
	}
}
