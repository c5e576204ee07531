package path

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/path/trace"
)

// Findings of a probe that did not go as predicted.
const (
	Differs       Code = "Differs"       // another end than predicted, or another endpoint
	OtherWay      Code = "OtherWay"      // a node that is not on the predicted way
	SourceDiffers Code = "SourceDiffers" // a source that was kept or replaced against the prediction
)

// addProbe describes the probe.
func (p *Path) addProbe(w trace.Way, h trace.Heard) {
	r := &ProbeReport{Outcome: string(h.Outcome), Injected: h.Injected, Answer: h.Answer, Error: h.Error}
	if h.Local.IsValid() {
		r.Local = h.Local.String()
	}
	if len(w.Hops) > 0 && len(w.Reply) > 0 {
		first, last := w.Hops[0], w.Reply[len(w.Reply)-1]
		if first.Node == last.Node && len(first.Steps) > 0 && len(last.Steps) > 0 {
			took := last.Steps[len(last.Steps)-1].Time.Sub(first.Steps[0].Time)
			r.Millis = math.Round(max(0, took.Seconds()*1e5)) / 100
		}
	}
	p.Probe = r
}

// see adds what each node saw, and reports whether it is as predicted. The hops are compared only up to the end of the
// way.
func (p *Path) see(w trace.Way) bool {
	agree := true
	visits := p.predictedHops()
	seen := map[string]bool{}
	at := map[string]int{} // the next visit of a node
	for _, h := range w.Hops {
		seen[h.Node] = true
		x := Hop{
			Node: h.Node, Before: addresses(h.Before), Observed: addresses(h.After), In: h.In, Out: h.Out, TTL: int(h.TTL), Agree: true, Rules: rulesOf(h),
		}
		if i := slices.IndexFunc(visits[at[h.Node]:], func(v visit) bool { return v.node == h.Node }); i >= 0 {
			i += at[h.Node]
			x.Predicted, at[h.Node] = &visits[i].behind, i+1
			visits[i].seen = true
		} else if i := slices.IndexFunc(visits, func(v visit) bool { return v.node == h.Node }); i >= 0 {
			x.Predicted = &visits[i].behind // a relay's connection
		}
		if h.Left && !p.Proof.Relayed && w.End.Class == trace.Delivered {
			x.Agree = p.asPredicted(w, h, x.Predicted)
		}
		agree = agree && x.Agree
		p.Hops = append(p.Hops, x)
	}
	for _, v := range visits {
		if !v.seen {
			p.Hops = append(p.Hops, Hop{Node: v.node, Predicted: &v.behind})
		}
	}
	p.markSteps(w, seen)
	return agree
}

// asPredicted compares a hop with its prediction, and adds a finding if they differ.
func (p *Path) asPredicted(w trace.Way, h trace.Hop, want *Addresses) bool {
	switch {
	case want == nil && p.Verdict.Predicted == Delivered:
		p.differs(OtherWay, "The packet passed "+h.Node+", which is not on the predicted way.", "fairway doctor on "+h.Node)
		return false
	case want == nil || p.Verdict.Predicted != Delivered && p.Verdict.Predicted != Sometimes:
		return true
	case want.Dst != h.After.Dst.String() && !p.isCandidate(h.After.Dst.String()):
		p.differs(Differs, fmt.Sprintf("%s sent it to %v, and the objects say %s.", h.Node, h.After.Dst, want.Dst), "fairway diff on "+h.Node)
		return false
	case p.From.Kind == "Node":
		return true
	}
	kept := h.After.Src.Addr() == w.Hops[0].Before.Src.Addr()
	if host, err := netip.ParseAddr(want.Src); err == nil && kept != (want.Src == p.From.IP) {
		p.differs(SourceDiffers, fmt.Sprintf("Behind %s the source is %v, and the objects say %v.", h.Node, h.After.Src.Addr(), host), "fairway diff on "+h.Node)
		return false
	}
	return true
}

// isCandidate reports whether an address is an endpoint of the Service. Follow says whether it is a kept one.
func (p *Path) isCandidate(addr string) bool {
	return slices.ContainsFunc(p.Candidates, func(c Candidate) bool { return c.Addr == addr })
}

func (p *Path) differs(code Code, text, advice string) {
	if !slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Code == code }) {
		p.Findings = append(p.Findings, Finding{Code: code, Level: Warning, Text: text, Advice: advice})
	}
}

// A visit is a predicted pass through a node. A node can be passed twice.
type visit struct {
	node        string
	behind      Addresses // the source has no port
	first, last int       // steps
	seen        bool
}

// predictedHops returns the visits of the predicted way.
func (p *Path) predictedHops() (visits []visit) {
	now := Addresses{Src: p.From.IP, Dst: p.Proof.To.String()}
	for i, s := range p.Steps {
		if s.Node == "" || s.Kind == KindDNS {
			continue
		}
		if s.After != nil {
			now = *s.After
		}
		if n := len(visits); n == 0 || visits[n-1].node != s.Node {
			visits = append(visits, visit{node: s.Node, first: i})
		}
		v := &visits[len(visits)-1]
		if v.behind, v.last = now, i; s.Kind == KindService && v.first == i {
			v.first++ // the link is shown behind the Service
		}
	}
	return visits
}

func addresses(t trace.Tuple) *Addresses { return &Addresses{Src: t.Src.String(), Dst: t.Dst.String()} }

// rulesOf returns the rules that judged the packet, without the probe's own.
func rulesOf(h trace.Hop) (all []Ref) {
	for _, o := range h.Steps {
		r := o.Rule
		if r == nil || r.Verdict == "continue" || strings.HasPrefix(r.Table, "fairway-path-") {
			continue
		}
		verdict := r.Verdict
		if r.Target != "" {
			verdict += " " + r.Target
		}
		all = append(all, Ref{
			Kernel: "nft-" + r.Kind, Table: r.Family + " " + r.Table, Chain: r.Chain, Handle: r.Handle, Field: verdict, Text: r.Text,
			Show: "nft -a list chain " + r.Family + " " + r.Table + " " + r.Chain,
		})
	}
	return all
}

// markSteps marks the steps on nodes that saw the packet, and adds the link by which it came to each node.
func (p *Path) markSteps(w trace.Way, seen map[string]bool) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if !seen[s.Node] || s.Kind == KindDNS {
			continue
		}
		s.Observed = s.State
		for _, h := range w.Hops {
			if h.Node == s.Node {
				s.Evidence = append(s.Evidence, evidence(*s, h)...)
			}
		}
	}
	for i := range p.Reply {
		if slices.ContainsFunc(w.Reply, func(h trace.Hop) bool { return h.Node == p.Reply[i].Node }) || p.Probe != nil && p.Probe.Outcome == string(trace.Answered) {
			p.Reply[i].Observed = Accepted
		}
	}
	p.addLinks(w)
	for i := range p.Steps {
		p.Steps[i].N = i + 1
	}
	p.Verdict.Step = len(p.Steps)
}

// addLinks adds the link by which the packet came to each node.
func (p *Path) addLinks(w trace.Way) {
	begin := 0
	for n, h := range w.Hops {
		visits := slices.DeleteFunc(p.predictedHops(), func(v visit) bool { return v.node != h.Node || v.last < begin })
		if len(visits) == 0 || visits[0].first > visits[0].last || n > 0 && w.Hops[n-1].Node == h.Node {
			continue
		}
		s := Step{Node: h.Node, Kind: KindLink, State: Accepted, Observed: Accepted, Text: "from " + cmp.Or(h.In, "this node itself"), Before: addresses(h.Before)}
		if s.Detail = h.Before.String(); n > 0 {
			s.Detail = fmt.Sprintf("ttl %d", h.TTL)
		}
		p.Steps = slices.Insert(p.Steps, visits[0].first, s)
		begin = visits[0].last + 2
	}
}

// evidence returns what shows a step.
func evidence(s Step, h trace.Hop) (all []Evidence) {
	if s.Kind == KindNAT || s.Kind == KindService {
		for _, o := range h.Steps {
			if r := o.Rule; r != nil && r.Kind == "rule" && r.Type == "nat" && r.Hook != "postrouting" && r.Verdict == "accept" {
				all = append(all, Evidence{By: string(o.Source), At: o.Time, Verdict: r.Verdict, Where: r.Place()})
			}
		}
	}
	if f := h.Flow; f != nil && (s.Kind == KindNAT || s.Kind == KindMasquerade) {
		all = append(all, Evidence{By: string(trace.FromConntrack), ID: fmt.Sprintf("%#x", f.ID), Verdict: f.Event, Where: addresses(h.After).Src + " → " + addresses(h.After).Dst})
	}
	return all
}
