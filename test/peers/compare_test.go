package peers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/test/peers/volley"
)

// A question is a packet that is sent to both, many times over.
type question struct {
	scenario.Packet
	// want is what the policy expects: it says how often to ask and how long to wait,
	// not which of the two is right.
	want []netip.AddrPort
	// far are those of want that see the node.
	far    map[netip.AddrPort]bool
	likely bool // an answer is expected
	unused bool // unusedExternal
	// sticky: each client meets one endpoint only, and which one is random.
	sticky bool
}

// questions adds what is expected.
func (o *oracle) questions(table *service.Table, in objects, all []scenario.Packet) []*question {
	var out []*question
	for _, p := range all {
		want, known := scenario.Predict(table, p)
		q := &question{Packet: p, far: map[netip.AddrPort]bool{}, unused: unusedExternal(p, table), likely: known && want.Action != service.Drop}
		if want.Action == service.Reject && (o.config.mode == "iptables" || q.unused) {
			q.likely = false // often documented as silence
		}
		lost := false
		for _, r := range want.Reaches {
			if r.Source != scenario.Node && p.From.Place == scenario.World.Peer.Name && p.To.Addr().Is4() && !o.ours.onNode(r.Endpoint.Addr()) {
				// The other node does not believe an IPv4 packet with its own address that
				// comes from outside.
				lost = true
				continue
			}
			q.want = append(q.want, r.Endpoint)
			q.far[r.Endpoint] = r.Source == scenario.Node
		}
		if svc := owner(p, in); svc != nil {
			q.sticky = svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
		}
		if lost && q.sticky {
			continue // silence or not, by chance
		}
		q.likely = q.likely && !lost
		out = append(out, q)
	}
	return out
}

// An observation is what clients learn about a destination by asking many times.
type observation struct {
	// verdicts are those of packets that no endpoint got.
	verdicts []string
	// seen are the endpoints that were reached, the source they saw ("client", "node" or an
	// address that is neither), and how the answer came back if not as it should.
	seen map[netip.AddrPort]string
}

func (o observation) String() string {
	words := slices.Sorted(slices.Values(o.verdicts))
	for _, at := range slices.SortedFunc(maps.Keys(o.seen), netip.AddrPort.Compare) {
		words = append(words, fmt.Sprintf("%v(%s)", at, o.seen[at]))
	}
	return strings.Join(words, " ")
}

// only reports whether v was the answer to all packets.
func (o observation) only(v volley.Verdict) bool {
	return len(o.seen) == 0 && len(o.verdicts) == 1 && o.verdicts[0] == v.String()
}

// refused reports whether all were refused, in whichever way.
func (o observation) refused() bool { return o.only(volley.Reset) || o.only(volley.Refused) }

func (o *observation) add(tw *twin, q *question, r volley.Result) {
	if r.By == nil || r.Verdict >= volley.Reset { // no endpoint listens there
		if v := r.Verdict.String(); !slices.Contains(o.verdicts, v) {
			o.verdicts = append(o.verdicts, v)
		}
		return
	}
	who := tw.who(q.Packet, r.Seen)
	if r.Verdict != volley.Answered {
		who += ", " + r.Verdict.String()
	}
	if h := tw.hosts[r.At.Addr()]; h == nil || h.Name != r.By.Name {
		who += ", at " + r.By.Name
	}
	if was, ok := o.seen[r.At]; ok && was != who {
		who = min(was, who) + "|" + max(was, who)
	}
	o.seen[r.At] = who
}

// misses reports whether an endpoint has not answered yet.
func (o observation) misses(q *question) bool {
	return !q.sticky && slices.ContainsFunc(q.want, func(w netip.AddrPort) bool { return o.seen[w] == "" })
}

// who names the owner of the address that an endpoint has seen. A node's own packets show the node,
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

// observe asks each question several times, and again those that some endpoint has not
// answered yet: chance passes over one of n in 40 n tries less than once in 10^17.
func (tw *twin) observe(all []*question, patience, quiet time.Duration) ([]observation, error) {
	out := make([]observation, len(all))
	for i := range out {
		out[i].seen = map[netip.AddrPort]string{}
	}
	for round := range 7 {
		var probes []volley.Probe
		var of []int
		for i, q := range all {
			if round > 0 && !out[i].misses(q) {
				continue
			}
			n := max(2, 6*len(q.want))
			if q.sticky {
				n = 5
			}
			for range n {
				probes = append(probes, tw.probe(q))
				of = append(of, i)
			}
		}
		// Fewer than the ports that a field has, and no more than sockets have buffers for.
		for start := 0; start < len(probes); start += maxVolley {
			end := min(start+maxVolley, len(probes))
			results, err := tw.field.Fire(probes[start:end], patience, quiet)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", tw.name, err)
			}
			for k, r := range results {
				out[of[start+k]].add(tw, all[of[start+k]], r)
			}
		}
	}
	return out, nil
}

const maxVolley = 4000

// looks are one after the other at what differs: on a busy machine a late answer looks
// like none. quiet is how long silence must last where silence is expected; what comes
// later is missed, not mistaken, and packets cross the network while they are sent.
var looks = []look{
	{time.Second, 10 * time.Millisecond}, {4 * time.Second, 500 * time.Millisecond}, {20 * time.Second, 4 * time.Second},
}

type look struct{ patience, quiet time.Duration }

// onNode reports whether an address is node-1's or that of a pod on it.
func (tw *twin) onNode(a netip.Addr) bool {
	h := tw.hosts[a]
	return h == tw.node || h != nil && h.Node() == tw.node
}

// probe is the question as a packet; the source is what the client's kernel would take.
func (tw *twin) probe(q *question) volley.Probe {
	src, to := q.From.Addr, q.To.Addr()
	if tw.hosts[src] == tw.node && (to.IsLoopback() || tw.hosts[to] == tw.node) {
		src = to
	}
	return volley.Probe{From: tw.stations[tw.hosts[q.From.Addr].Name], Src: src, To: q.To, Proto: q.Proto, Likely: q.likely}
}

// A difference is a packet with two results.
type difference struct {
	packet       scenario.Packet
	unused       bool // unusedExternal
	theirs, ours observation
}

func (d difference) String() string {
	return fmt.Sprintf("%s\n    kube-proxy: %v\n    fairway:    %v", d.packet.Text, d.theirs, d.ours)
}

// compare asks both all questions and returns what differs.
func (o *oracle) compare(t *testing.T, in objects, all []*question) (differences []difference, sent tally) {
	t.Helper()
	for attempt, look := range o.looks {
		var seen [2][]observation
		var errs [2]error
		var wait sync.WaitGroup
		for i, tw := range []*twin{o.theirs, o.ours} {
			wait.Go(func() { seen[i], errs[i] = tw.observe(all, look.patience, look.quiet) })
		}
		wait.Wait()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		var again []*question
		var open []difference
		for i, q := range all {
			d := difference{packet: q.Packet, unused: q.unused, theirs: seen[0][i], ours: seen[1][i]}
			if attempt == 0 {
				sent.count(d.ours)
			}
			switch {
			case d.theirs.String() == d.ours.String(), q.sticky && d.theirs.stays(q) && d.ours.stays(q):
			case explain(d, in, o.config) != "":
				differences = append(differences, d)
			default:
				open, again = append(open, d), append(again, q)
			}
		}
		all = again
		if len(all) == 0 {
			break
		}
		if attempt == len(o.looks)-1 {
			differences = append(differences, open...)
		}
	}
	slices.SortFunc(differences, func(a, b difference) int { return strings.Compare(a.packet.Text, b.packet.Text) })
	return differences, sent
}

// stays reports whether one endpoint alone has answered, one of those that may, and saw
// the source that it should see.
func (o observation) stays(q *question) bool {
	if len(o.seen) != 1 || len(o.verdicts) > 0 {
		return false
	}
	for at, who := range o.seen {
		return slices.Contains(q.want, at) && (!q.far[at] || strings.HasPrefix(who, "node"))
	}
	return false
}

// A tally counts questions by what became of them.
type tally struct{ reached, refused, silent, other int }

func (t *tally) count(o observation) {
	switch {
	case len(o.seen) > 0:
		t.reached++
	case o.refused():
		t.refused++
	case o.only(volley.Silence):
		t.silent++
	default:
		t.other++
	}
}

func (t *tally) add(o tally) {
	t.reached += o.reached
	t.refused += o.refused
	t.silent += o.silent
	t.other += o.other
}

func (t tally) String() string {
	return fmt.Sprintf("%d packets (%d reached endpoints, %d refused, %d silent, %d other)",
		t.reached+t.refused+t.silent+t.other, t.reached, t.refused, t.silent, t.other)
}
