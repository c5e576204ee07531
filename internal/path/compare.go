package path

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// Compare adds to a prediction what nodes saw of a probe, and what its sender heard: the hops, the observed end and
// endpoint, whether they agree with the prediction, and the causes that only a kernel shows. Question.Follow makes a
// prediction for the endpoint that was seen. A way that was not watched to its end proves nothing: Observed stays empty.
func Compare(p *Path, w trace.Way, h trace.Heard) {
	p.addProbe(w, h)
	for _, n := range w.NotWatched {
		if !slices.Contains(p.NotLooked, n) {
			p.NotLooked = append(p.NotLooked, n)
		}
	}
	observed, proved := p.observed(w, h)
	same := p.see(w)
	if !proved {
		p.NotProved = cmp.Or(p.NotProved, notProved(w, h))
		return
	}
	if p.tookByProxy(w, h) {
		p.endAtProxy()
		return
	}
	p.NotLooked = slices.DeleteFunc(p.NotLooked, func(s string) bool { return s == notListening })
	p.Verdict.Observed = observed
	was := p.Verdict.Predicted
	end := observed == was || was == Sometimes && (observed == Delivered || observed == Dropped) || was == Accepted && (observed == Delivered || observed == Refused)
	agree := p.follow(w) && end && (same || observed != Delivered)
	p.Verdict.Agree = &agree
	switch {
	case agree: // the predicted cause stands
	case end && observed == Delivered:
		p.otherEndpoint(w)
	case observed == Delivered:
		p.arrivedAnyway(was)
	default:
		p.addEnd(w.End, observed)
		if len(w.Findings) > 0 {
			p.Findings = slices.Insert(p.Findings, 0, p.sentence(w.Findings[0], w.End))
		}
	}
}

// tookByProxy reports whether the proxy of mode userspace answered a probe in a client's name. It connects to an endpoint
// only for a client that completes the handshake, which such a probe does not.
func (p *Path) tookByProxy(w trace.Way, h trace.Heard) bool {
	n := len(w.Hops)
	return p.Proof.Relayed && h.Injected && len(p.Candidates) > 0 && w.End.Class == trace.Delivered && n > 0 && w.Hops[n-1].After.Dst == p.Proof.To
}

// endAtProxy ends what was seen at the proxy.
func (p *Path) endAtProxy() {
	was := p.Verdict.Predicted
	agree := was == Delivered || was == Sometimes || was == Accepted
	p.Verdict.Observed, p.Verdict.Agree = Accepted, &agree
	for i := range p.Steps {
		if k := p.Steps[i].Kind; k != KindService && k != KindLink {
			p.Steps[i].Observed, p.Steps[i].Evidence = "", nil
		}
	}
	for i := range p.Candidates {
		p.Candidates[i].Followed = false
	}
	if !agree {
		p.arrivedAnyway(was)
	}
}

// observed returns the state of a way's end, and whether it proves something.
func (p *Path) observed(w trace.Way, h trace.Heard) (State, bool) {
	e := w.End
	silent := len(w.Findings) == 0 || w.Findings[0].Code == trace.EndpointSilent
	left := len(w.Hops) > 0 && w.Hops[len(w.Hops)-1].Left && e.Rule == nil && e.Drop == nil
	switch {
	case e.Class == trace.Unanswered && p.Proof.Proto == api.UDP && silent:
		return Delivered, true // a server may well ignore the datagram
	case p.Verdict.Predicted == Accepted && left && (e.Class == trace.LostAfter || e.Class == trace.NotLooked):
		return Accepted, true // what follows is not the cluster's
	case e.Class == trace.NotSent && (h.Outcome == trace.Unreachable || h.Outcome == trace.TooBig):
		return Dropped, true
	}
	observed, proved := ends[e.Class]
	return observed, proved
}

// notProved says why a way proves nothing.
func notProved(w trace.Way, h trace.Heard) string {
	switch {
	case h.Outcome == trace.Failed:
		return "the probe was not sent: " + h.Error
	case w.End.Class == trace.NotLooked && len(w.Hops) > 0:
		return "the packet left " + w.Hops[len(w.Hops)-1].Node + ", and the next node was not watched"
	}
	return "no node saw the probe"
}

// arrivedAnyway corrects a predicted end that did not stop the packet.
func (p *Path) arrivedAnyway(was State) {
	p.Findings = slices.DeleteFunc(p.Findings, func(f Finding) bool { return f.Level == Fatal })
	s := &p.Steps[len(p.Steps)-1]
	s.Predicted, s.State, s.Observed = &Foreseen{State: was}, Delivered, Delivered
	why := cmp.Or(s.Detail, s.Text)
	p.differs(Differs, fmt.Sprintf("It arrives, and the objects say %s (%s): a node's rules differ from the objects.", was, why), "fairway diff on "+s.Node)
}

// otherEndpoint explains a packet that arrived where the prediction does not lead.
func (p *Path) otherEndpoint(w trace.Way) {
	p.Findings = slices.DeleteFunc(p.Findings, func(f Finding) bool { return f.Level == Fatal })
	if len(w.Hops) == 0 || slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Code == OtherWay || f.Code == SourceDiffers || f.Code == Differs }) {
		return
	}
	h := w.Hops[len(w.Hops)-1]
	p.differs(Differs, fmt.Sprintf("It went to %v, which the objects leave out: a node's rules are older than the objects.", h.After.Dst), "fairway diff on "+w.Hops[0].Node)
}

// ends are the states of the classes that prove something.
var ends = map[trace.Class]State{
	trace.Delivered: Delivered, trace.RefusedBy: Refused, trace.DroppedBy: Dropped, trace.LostAfter: Dropped, trace.ReplyLost: Dropped, trace.Unanswered: Dropped,
}

// follow marks the endpoint that the packet went to. It reports whether the prediction has this endpoint.
func (p *Path) follow(w trace.Way) bool {
	if len(p.Candidates) == 0 || len(w.Hops) == 0 {
		return true
	}
	to := w.Hops[len(w.Hops)-1].After.Dst
	i := slices.IndexFunc(p.Candidates, func(c Candidate) bool { return c.Addr == to.String() || c.Addr == to.Addr().String() })
	if i < 0 {
		return w.End.Class != trace.Delivered // a packet that ended early was not translated yet
	}
	for j := range p.Candidates {
		p.Candidates[j].Followed = i == j
	}
	return p.Candidates[i].Kept
}

// addEnd ends the steps where the packet ended.
func (p *Path) addEnd(e trace.End, observed State) {
	s := Step{Node: e.Node, Kind: KindLink, Hook: e.Hook, State: observed, Observed: observed, Text: "ends here", Predicted: &Foreseen{State: p.Verdict.Predicted}}
	if observed == Refused {
		s.Text = "refused here"
	} else if e.Hook != "" {
		s.Text = "ends after hook " + e.Hook
	}
	if e.Next != "" {
		s.Text, s.Detail = "lost between "+e.Node+" and "+e.Next, e.Link
	}
	if r := e.Rule; r != nil {
		s.Kind, s.Text, s.Detail = KindFilter, "ends at "+e.Hook+" by a rule", r.Place()
		s.Refs = []Ref{{Kernel: "nft-rule", Table: r.Family + " " + r.Table, Chain: r.Chain, Handle: r.Handle, Text: r.Text, Show: "nft -a list chain " + r.Family + " " + r.Table + " " + r.Chain}}
		s.Evidence = append(s.Evidence, Evidence{By: string(trace.FromNFTrace), Verdict: r.Verdict})
	}
	if d := e.Drop; d != nil {
		s.Evidence = append(s.Evidence, Evidence{By: string(trace.FromDrop), Reason: d.Reason, Where: d.Where})
		s.Detail = cmp.Or(s.Detail, strings.TrimSpace("kernel: "+d.Reason+" "+d.Where))
	}
	i := p.endOf(e, observed)
	s.N = i + 1
	p.Steps = append(p.Steps[:i], s)
	p.Verdict.Step = s.N
	p.Reply = []Step{}
}

// endOf returns the number of steps before the end. The steps behind it were not seen.
func (p *Path) endOf(e trace.End, observed State) int {
	socket := slices.IndexFunc(p.Steps, func(s Step) bool { return s.Kind == KindSocket })
	if socket < 0 {
		socket = len(p.Steps)
	}
	if e.Rule == nil && observed == Refused {
		return socket
	}
	for i, s := range p.Steps[:socket] {
		early := s.Kind == KindDNS || s.Kind == KindService || s.Kind == KindNAT && hookOrder[e.Hook] > 0
		if s.Node == e.Node && !early && hookOrder[s.Hook] >= hookOrder[e.Hook] {
			return i
		}
	}
	return socket
}

// hookOrder is the order in which a packet meets the hooks.
var hookOrder = map[string]int{"prerouting": 0, "output": 0, "forward": 1, "input": 1, "postrouting": 2}

// endpointName returns the pod of an endpoint.
func (p *Path) endpointName(addr string) string {
	for _, c := range p.Candidates {
		if c.Addr == addr && c.Pod != "" {
			return c.Pod
		}
	}
	return addr
}

// ports returns the ports of a list of listeners.
func ports(listens string) string {
	var all []string
	for _, l := range strings.Fields(listens) {
		if i := strings.LastIndexByte(l, ':'); i >= 0 && !slices.Contains(all, l[i+1:]) {
			all = append(all, l[i+1:])
		}
	}
	return strings.Join(all, ", ")
}

// sentence writes a finding of the trace.
func (p *Path) sentence(f trace.Finding, e trace.End) Finding {
	x := f.Facts
	pod := p.endpointName(x["addr"])
	_, port, _ := strings.Cut(x["addr"][max(0, strings.LastIndexByte(x["addr"], ':')):], ":")
	out := Finding{Code: Code(f.Code), Level: Fatal}
	switch f.Code {
	case trace.ForeignRule:
		out.Text = fmt.Sprintf("Another program's rule ends it: %s.", x["rule"])
		if e.Rule != nil {
			out.Advice = fmt.Sprintf("nft -a list chain %s %s %s", e.Rule.Family, e.Rule.Table, e.Rule.Chain)
		}
	case trace.OwnRule:
		out.Text = fmt.Sprintf("The rule %s ends it, and the objects say otherwise.", x["rule"])
		out.Advice = "fairway diff on " + f.Node
	case trace.NoListener:
		out.Text = fmt.Sprintf("%s refuses: nothing listens on %s.", pod, port)
		if x["listens"] != "" {
			out.Text = fmt.Sprintf("%s refuses: nothing listens on %s, it listens on %s.", pod, port, ports(x["listens"]))
		}
	case trace.OtherAddress:
		out.Text = fmt.Sprintf("%s listens on %s only.", pod, x["listens"])
	case trace.QueueFull:
		out.Text = fmt.Sprintf("%s's accept queue is full (%s of %s): ListenOverflows +%s.", pod, x["queue"], x["backlog"], x["overflows"])
	case trace.EndpointRefuses:
		out.Text = fmt.Sprintf("%s refuses: nothing listens on %s, or only on 127.0.0.1.", pod, port)
		out.Advice = "compare the Service's targetPort with the program's port"
	case trace.EndpointSilent:
		out.Text = fmt.Sprintf("The packet came to %s, which does not answer on %s: its accept queue is full, or it hangs.", pod, port)
		out.Advice = "look at the program in " + pod
	default:
		out.Text = kernelSentence(f)
	}
	return out
}

// kernelSentence writes a finding about a node's kernel.
func kernelSentence(f trace.Finding) string {
	x := f.Facts
	switch f.Code {
	case trace.NoRoute:
		return fmt.Sprintf("%s has no route to %s (%s).", f.Node, x["to"], x["kind"])
	case trace.NeighbourFailed:
		return fmt.Sprintf("%s answers no neighbour request on %s of %s.", x["via"], x["link"], f.Node)
	case trace.LinkDown:
		return fmt.Sprintf("%s of %s is down: it leads to %s.", x["link"], f.Node, x["to"])
	case trace.ForwardingOff:
		return fmt.Sprintf("%s is 0 on %s.", x["sysctl"], f.Node)
	case trace.ReversePath:
		return fmt.Sprintf("In by %s, back by %s: rp_filter on %s drops it.", x["link"], cmp.Or(x["back"], "another link"), x["link"])
	case trace.TooLarge:
		mtu := ""
		if n, err := strconv.Atoi(x["mtu"]); err == nil && n > 0 {
			mtu = " " + x["mtu"]
		}
		return fmt.Sprintf("The packet does not fit %s's MTU%s.", x["link"], mtu)
	case trace.TCProgram:
		return fmt.Sprintf("A tc program on %s of %s drops it.", x["link"], f.Node)
	case trace.ConntrackFull:
		return fmt.Sprintf("conntrack of %s is full (%s of %s).", f.Node, x["count"], x["max"])
	case trace.StaleFlow:
		return fmt.Sprintf("conntrack of %s still leads to %s, which is gone.", f.Node, x["to"])
	case trace.ReplyAstray:
		return fmt.Sprintf("The answer does not come back by %s: the client meets a stranger.", f.Node)
	case trace.NATDiffers:
		return fmt.Sprintf("%s sent it to %s, which is no endpoint.", f.Node, x["to"])
	case trace.NotTranslated:
		return fmt.Sprintf("%s did not translate %s: it left by %s.", f.Node, x["to"], x["link"])
	case trace.NotAnAddress:
		return fmt.Sprintf("%s has %s itself, and no Service has the port there.", f.Node, x["addr"])
	}
	return fmt.Sprintf("%s at %s.", f.Code, f.Node)
}
