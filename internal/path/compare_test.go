package path_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/path"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// hop leads to an endpoint.
func hop(to string) trace.Hop {
	return trace.Hop{Node: "node-1", After: trace.Tuple{Dst: netip.MustParseAddrPort(to)}, Left: true}
}

// TestCompare: what nodes saw, next to the prediction that a packet to web is delivered.
func TestCompare(t *testing.T) {
	data, err := os.ReadFile("testdata/00-delivered.txtar")
	if err != nil {
		t.Fatal(err)
	}
	objects := string(txtar.Parse(data).Files[0].Data)
	for name, c := range map[string]struct {
		way      trace.Way
		observed path.State
		agree    bool
		finding  string // of the first; empty: none
	}{
		"delivered":                         {trace.Way{Hops: []trace.Hop{hop("10.244.2.6:8080")}, End: trace.End{Class: trace.Delivered}}, path.Delivered, true, ""},
		"delivered to one that is left out": {trace.Way{Hops: []trace.Hop{hop("10.244.2.7:8080")}, End: trace.End{Class: trace.Delivered}}, path.Delivered, false, "It went to 10.244.2.7:8080, which the objects leave out: a node's rules are older than the objects."},
		"delivered to a stranger":           {trace.Way{Hops: []trace.Hop{hop("10.244.9.9:8080")}, End: trace.End{Class: trace.Delivered}}, path.Delivered, false, "node-1 sent it to 10.244.9.9:8080, and the objects say 10.244.1.5:8080."},
		"not watched":                       {trace.Way{End: trace.End{Class: trace.NotLooked}, NotWatched: []string{"node-2"}}, "", false, ""},
		"foreign rule": {trace.Way{Hops: []trace.Hop{hop("10.244.2.6:8080")},
			End:      trace.End{Class: trace.DroppedBy, Node: "node-1", Hook: "forward", Foreign: true, Rule: &trace.Rule{Family: "ip", Table: "firewall", Chain: "forward", Handle: 2, Verdict: "drop"}},
			Findings: []trace.Finding{{Code: trace.ForeignRule, Node: "node-1", Facts: map[string]string{"rule": "ip firewall forward #2"}}}}, path.Dropped, false, "Another program's rule ends it: ip firewall forward #2."},
		"no listener": {trace.Way{Hops: []trace.Hop{hop("10.244.2.6:8080")}, End: trace.End{Class: trace.RefusedBy, Node: "node-2"},
			Findings: []trace.Finding{{Code: trace.NoListener, Node: "node-2", Facts: map[string]string{"addr": "10.244.2.6:8080", "listens": "0.0.0.0:9090 [::]:9090"}}}}, path.Refused, false, "web-2 refuses: nothing listens on 8080, it listens on 9090."},
		"no route": {trace.Way{Hops: []trace.Hop{hop("10.244.2.6:8080")}, End: trace.End{Class: trace.DroppedBy, Node: "node-1", Drop: &trace.Drop{Reason: "IP_INNOROUTES", Where: "ip_error"}},
			Findings: []trace.Finding{{Code: trace.NoRoute, Node: "node-1", Facts: map[string]string{"to": "10.244.2.6", "kind": "none"}}}}, path.Dropped, false, "node-1 has no route to 10.244.2.6 (none)."},
	} {
		t.Run(name, func(t *testing.T) {
			p := ask(t, cluster(t, "", objects), "pod/cart svc/web")
			path.Compare(p, c.way, trace.Heard{})
			if p.Verdict.Observed != c.observed || c.observed == "" != (p.Verdict.Agree == nil) || p.Verdict.Agree != nil && *p.Verdict.Agree != c.agree {
				t.Errorf("%+v", p.Verdict)
			}
			text := render(t, p, false)
			switch {
			case c.finding == "" && len(p.Findings) > 0:
				t.Errorf("findings %+v", p.Findings)
			case c.finding != "" && (len(p.Findings) != 1 || p.Findings[0].Text != c.finding || strings.Contains(text, "✗") == (c.observed == path.Delivered)):
				t.Errorf("findings %+v\n%s", p.Findings, text)
			}
			for i, s := range p.Steps {
				if s.N != i+1 {
					t.Errorf("step %d has the number %d", i+1, s.N)
				}
			}
			t.Log(text)
		})
	}
}

// Every finding of a trace has a sentence.
func TestSentences(t *testing.T) {
	for _, code := range []trace.Code{trace.ForeignRule, trace.OwnRule, trace.NoListener, trace.OtherAddress, trace.QueueFull, trace.NoRoute, trace.NeighbourFailed, trace.LinkDown,
		trace.ForwardingOff, trace.ReversePath, trace.TooLarge, trace.TCProgram, trace.ConntrackFull, trace.StaleFlow, trace.ReplyAstray, trace.NATDiffers, trace.NotTranslated, trace.NotAnAddress} {
		p := &path.Path{Verdict: path.Verdict{Predicted: path.Delivered}}
		path.Compare(p, trace.Way{End: trace.End{Class: trace.DroppedBy, Node: "node-1"}, Findings: []trace.Finding{{Code: code, Node: "node-1"}}}, trace.Heard{})
		if len(p.Findings) != 1 || p.Findings[0].Text == "" || strings.HasPrefix(p.Findings[0].Text, string(code)+" at ") {
			t.Errorf("%s: %+v", code, p.Findings)
		}
	}
}

// TestCompareProxy: in mode userspace a probe in a client's name ends at the proxy, which answers it.
func TestCompareProxy(t *testing.T) {
	data, err := os.ReadFile("testdata/00-delivered.txtar")
	if err != nil {
		t.Fatal(err)
	}
	p := ask(t, cluster(t, "mode userspace", string(txtar.Parse(data).Files[0].Data)), "pod/cart svc/web")
	path.Compare(p, trace.Way{Hops: []trace.Hop{hop(p.Proof.To.String())}, End: trace.End{Class: trace.Delivered}}, trace.Heard{Outcome: trace.Answered, Injected: true})
	if p.Verdict.Observed != path.Accepted || p.Verdict.Agree == nil || !*p.Verdict.Agree || len(p.Findings) > 0 {
		t.Errorf("%+v, %+v", p.Verdict, p.Findings)
	}
	text := render(t, p, false)
	for _, want := range []string{"taken by the proxy", "? the proxy calls 10.244.1.5:8080", "Predicted, and seen as far as the proxy"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
