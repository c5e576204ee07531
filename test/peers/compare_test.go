package peers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairway-net/fairway/internal/scenario"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testnet"
)

// An observation is what clients learn about a destination by asking many times.
type observation struct {
	outcome testnet.Outcome // of all tries; Failed if they differ
	failure string          // why Failed
	// seen are the endpoints that answered, and whom they saw: "client", "node" or an
	// address that is neither.
	seen map[netip.AddrPort]string
}

func (o observation) String() string {
	if o.outcome != testnet.Answered {
		return strings.TrimSpace(o.outcome.String() + " " + o.failure)
	}
	var words []string
	for _, at := range slices.SortedFunc(maps.Keys(o.seen), netip.AddrPort.Compare) {
		words = append(words, fmt.Sprintf("%v(%s)", at, o.seen[at]))
	}
	return "answered by " + strings.Join(words, " ")
}

// observe sends p until every endpoint of want has answered, and some more, to meet
// those that should not.
//
// A Service with affinity shows each client one endpoint only, and which is chance.
func (tw *twin) observe(p scenario.Packet, want []netip.AddrPort, sticky bool, patience time.Duration) observation {
	network := "tcp"
	if p.Proto == service.UDP {
		network = "udp"
	}
	o := observation{seen: map[netip.AddrPort]string{}}
	n := max(len(want), 1)
	for i := 0; i < 40*n; i++ {
		a := tw.hosts[p.From.Addr].Ask(network, p.To, patience)
		if i > 0 && a.Outcome != o.outcome {
			return observation{failure: fmt.Sprintf("first %v, then %v", o.outcome, a)}
		}
		o.outcome = a.Outcome
		if a.Outcome != testnet.Answered {
			if a.Outcome == testnet.Failed {
				o.failure = a.Err.Error()
			}
			return o
		}
		at := a.At
		if h := tw.hosts[at.Addr()]; h == nil || h.Name != a.By {
			return observation{failure: fmt.Sprintf("answer of a wrong host: %v", a)}
		}
		who := tw.who(p, a.Seen.Addr())
		if was, ok := o.seen[at]; ok && was != who {
			who = was + "|" + who
		}
		o.seen[at] = who
		if sticky && i == 5 {
			break
		}
		if i >= 2*n && !slices.ContainsFunc(want, func(w netip.AddrPort) bool { return o.seen[w] == "" }) {
			break
		}
	}
	return o
}

// who says whose address an endpoint has seen. A node's own packets show the node,
// masqueraded or not.
func (tw *twin) who(p scenario.Packet, seen netip.Addr) string {
	switch {
	case tw.hosts[seen] == tw.node, seen.IsLoopback():
		return "node"
	case seen == p.From.Addr:
		return "client"
	}
	return seen.String()
}

// A difference is a packet that went two ways.
type difference struct {
	packet       scenario.Packet
	theirs, ours observation
}

func (d difference) String() string {
	return fmt.Sprintf("%s\n    kube-proxy: %v\n    fairway:    %v", d.packet.Text, d.theirs, d.ours)
}

// compare sends the packets to both, many at a time, and returns what differs and how
// many were sent.
func compare(theirs, ours *twin, table *service.Table, in objects, all []scenario.Packet) (differences []difference, sent tally) {
	var (
		mu   sync.Mutex
		wait sync.WaitGroup
		slot = make(chan struct{}, 24)
	)
	for _, p := range all {
		want, known := scenario.Predict(table, p)
		if known && !theirs.returns(p, want) {
			continue
		}
		svc := owner(p, in)
		sticky := svc != nil && svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
		slot <- struct{}{}
		wait.Go(func() {
			defer func() { <-slot }()
			d := difference{packet: p}
			same := false
			// A machine under load makes a late answer look like none: what differs is
			// looked at again, patiently.
			for _, patience := range []time.Duration{testnet.Patience, 4 * testnet.Patience} {
				d.theirs = theirs.observe(p, endpointsOf(want), sticky, patience)
				d.ours = ours.observe(p, endpointsOf(want), sticky, patience)
				same = d.theirs.String() == d.ours.String()
				if sticky && !same {
					same = d.theirs.stays(p, want) && d.ours.stays(p, want)
				}
				if same {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			sent.count(d.ours.outcome)
			if !same {
				differences = append(differences, d)
			}
		})
	}
	wait.Wait()
	slices.SortFunc(differences, func(a, b difference) int { return strings.Compare(a.packet.Text, b.packet.Text) })
	return differences, sent
}

// stays reports whether one endpoint alone has answered, one of those that may.
func (o observation) stays(p scenario.Packet, want scenario.Outcome) bool {
	return o.outcome == testnet.Answered && len(o.seen) == 1 && slices.ContainsFunc(want.Reaches, func(r scenario.Reach) bool {
		who := o.seen[r.Endpoint]
		return who != "" && (r.Source == scenario.AnySource || r.Source.String() == who || p.From.Place == scenario.World.Node.Name)
	})
}

func endpointsOf(o scenario.Outcome) []netip.AddrPort {
	var out []netip.AddrPort
	for _, r := range o.Reaches {
		out = append(out, r.Endpoint)
	}
	return out
}

// returns reports whether replies come back through the node whichever endpoint is
// chosen. A client elsewhere that an endpoint elsewhere sees as itself gets its reply
// past the node, from an address that it never asked.
func (tw *twin) returns(p scenario.Packet, want scenario.Outcome) bool {
	onNode := func(a netip.Addr) bool {
		h := tw.hosts[a]
		return h == tw.node || h != nil && h.Node() == tw.node
	}
	return onNode(p.From.Addr) || !slices.ContainsFunc(want.Reaches, func(r scenario.Reach) bool {
		return r.Source != scenario.Node && !onNode(r.Endpoint.Addr())
	})
}

// A tally counts packets by what became of them.
type tally [4]int

func (t *tally) count(o testnet.Outcome) { t[o]++ }

func (t *tally) add(o tally) {
	for i := range t {
		t[i] += o[i]
	}
}

func (t tally) String() string {
	return fmt.Sprintf("%d packets (%d answered, %d refused, %d dropped, %d failed)",
		t[0]+t[1]+t[2]+t[3], t[testnet.Answered], t[testnet.Refused], t[testnet.Dropped], t[testnet.Failed])
}
