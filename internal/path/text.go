package path

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/fairway-net/fairway/internal/text"
)

// The columns of a Path's text.
const (
	textColumn   = 2  // the width of a mark, with a space
	detailColumn = 38 // the width of a step's text
	maxLabel     = 20
)

// A Style says how the text of a path looks.
type Style struct {
	Color bool // marks and findings have the colors of a terminal
	Rules bool // the rules that judged the packet on each node
}

// WriteText writes the path for people, at most text.Width columns wide where the names allow it.
func (p *Path) WriteText(w io.Writer, style Style) error {
	t := writer{color: style.Color, rules: style.Rules, probed: p.Verdict.Observed != ""}
	t.label = len("service")
	for _, s := range p.Steps {
		t.label = max(t.label, min(utf8.RuneCountInString(s.Node), maxLabel))
	}
	t.label += 2
	t.head(p)
	t.steps(p)
	t.findings(p)
	_, err := io.WriteString(w, t.String())
	return err
}

type writer struct {
	strings.Builder
	color  bool
	rules  bool
	probed bool
	label  int // the width of the first column
}

// paint returns text in a color of the terminal.
func (t *writer) paint(code, s string) string {
	if !t.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// mark returns the mark of a state.
func (t *writer) mark(s State) string {
	switch s {
	case Accepted, Delivered:
		return t.paint("32", "✓")
	case Sometimes:
		return t.paint("33", "!")
	}
	return t.paint("31", "✗")
}

func (t *writer) head(p *Path) {
	from := cmp.Or(p.From.Name, "outside")
	if p.From.NS != "" {
		from = p.From.NS + "/" + from
	}
	if p.From.IP != "" {
		from += " " + p.From.IP
	}
	if p.From.Kind == "Pod" {
		from += " on " + p.From.Node
	}
	to := p.To.Key
	if p.To.Service != "" {
		to = strings.TrimSpace(p.To.Service + " " + p.To.Key)
	}
	line := from + "  →  " + cmp.Or(to, p.To.Asked)
	end := cmp.Or(p.Verdict.Observed, p.Verdict.Predicted)
	verdict := verdictWords[end]
	if end == Accepted && p.Proof.Relayed && p.Verdict.Observed == Accepted {
		verdict = "taken by the proxy"
	}
	if p.Probe != nil && p.Probe.Millis > 0 && end == Delivered {
		verdict += fmt.Sprintf(", %.1f ms", p.Probe.Millis)
	}
	switch {
	case p.Verdict.Agree == nil || *p.Verdict.Agree:
	case end == p.Verdict.Predicted:
		verdict += ", by another way than predicted"
	default:
		verdict += ", predicted: " + verdictWords[p.Verdict.Predicted]
	}
	if utf8.RuneCountInString(line)+utf8.RuneCountInString(verdict)+4 > text.Width {
		line += "\n"
	} else {
		line += "  "
	}
	fmt.Fprintf(t, "%s%s %s\n\n", line, t.mark(end), verdict)
}

var verdictWords = map[State]string{
	Accepted: "leaves the cluster", Delivered: "delivered", Refused: "refused", Dropped: "dropped", Unresolved: "the name has no address",
	Sometimes: "some endpoints get it, some do not",
}

// placeless are the labels of steps that are on no node.
var placeless = map[Kind]string{KindDNS: "name", KindAnnounce: "network", KindService: "service"}

func (t *writer) steps(p *Path) {
	last := ""
	shown := false
	for _, s := range p.Steps {
		label := cmp.Or(placeless[s.Kind], s.Node)
		if label == last {
			t.step("", s)
		} else {
			t.step(label, s)
		}
		last = label
		if s.Kind == KindService {
			shown = true
			t.candidates(p)
		}
	}
	if !shown {
		t.candidates(p)
	}
	if t.rules {
		t.judges(p)
	}
	for i, s := range p.Reply {
		t.step(map[bool]string{true: "reply"}[i == 0], s)
	}
}

// step writes one line, or two if the detail does not fit.
func (t *writer) step(label string, s Step) {
	main, detail := s.Text, s.Detail
	mark := t.mark(s.State)
	if t.probed && s.Observed == "" && s.Node != "" {
		mark = t.paint("33", "?")
	}
	t.line(label, mark+" ", main, detail)
	for _, r := range s.Refs {
		if r.Kernel != "" && s.Kind == KindService {
			t.line("", strings.Repeat(" ", textColumn), r.Text, "")
		}
	}
}

func (t *writer) line(label, mark, main, detail string) {
	first := pad(label, t.label) + mark
	width := t.label + textColumn
	n := utf8.RuneCountInString(main)
	switch d := utf8.RuneCountInString(detail); {
	case detail == "":
		fmt.Fprintf(t, "%s%s\n", first, main)
	case n < detailColumn && width+detailColumn+d <= text.Width:
		fmt.Fprintf(t, "%s%s%s\n", first, pad(main, detailColumn), detail)
	case width+n+2+d <= text.Width:
		fmt.Fprintf(t, "%s%s  %s\n", first, main, detail)
	default:
		fmt.Fprintf(t, "%s%s\n", first, main)
		for _, l := range text.Wrap(detail, text.Width-width-2) {
			fmt.Fprintf(t, "%s%s\n", strings.Repeat(" ", width+2), l)
		}
	}
}

// maxShown bounds the endpoints of the text. JSON has all.
const maxShown = 20

func (t *writer) candidates(p *Path) {
	var widths [3]int
	for _, c := range p.Candidates {
		for i, s := range []string{c.Addr, c.Pod, c.Node} {
			widths[i] = max(widths[i], utf8.RuneCountInString(cmp.Or(s, "-")))
		}
	}
	indent := strings.Repeat(" ", t.label+textColumn)
	for i, c := range p.Candidates {
		if i == maxShown {
			fmt.Fprintf(t, "%s  and %d more: see -o json\n", indent, len(p.Candidates)-i)
			break
		}
		mark := "  "
		if c.Followed {
			mark = t.paint("36", "▸") + " "
		}
		row := pad(cmp.Or(c.Addr, "-"), widths[0]+2) + pad(cmp.Or(c.Pod, "-"), widths[1]+2) + pad(cmp.Or(c.Node, "-"), widths[2]+2)
		what := share(c.Share)
		switch {
		case !c.Kept:
			what = "left out: " + c.Reason
		case c.Denied != "":
			what += ", denied by " + c.Denied
		}
		if c.Probes > 0 {
			what += fmt.Sprintf(", seen %d×: %s", c.Probes, c.Observed)
		}
		room := text.Width - t.label - textColumn - 2 - utf8.RuneCountInString(row)
		if utf8.RuneCountInString(what) <= room {
			fmt.Fprintf(t, "%s%s%s%s\n", indent, mark, row, what)
			continue
		}
		fmt.Fprintf(t, "%s%s%s\n", indent, mark, strings.TrimRight(row, " "))
		for _, l := range text.Wrap(what, text.Width-t.label-textColumn-6) {
			fmt.Fprintf(t, "%s      %s\n", indent, l)
		}
	}
}

// share writes a part as a fraction where it is one, else in percent.
func share(f float64) string {
	if f == 0 {
		return "-"
	}
	if n := math.Round(1 / f); math.Abs(1/f-n) < 1e-9 {
		return fmt.Sprintf("1/%d", int(n))
	}
	return fmt.Sprintf("%.0f%%", 100*f)
}

func (t *writer) findings(p *Path) {
	t.WriteString("\n")
	for _, f := range p.Findings {
		code := map[Level]string{Fatal: "31", Warning: "33", Info: "36"}[f.Level]
		for i, l := range text.Wrap(f.Text, text.Width-2) {
			if i == 0 {
				fmt.Fprintf(t, "%s %s\n", t.paint(code, "→"), l)
			} else {
				fmt.Fprintf(t, "  %s\n", l)
			}
		}
		if f.Advice != "" {
			fmt.Fprintf(t, "  [%s]\n", f.Advice)
		}
	}
	foot := p.foot()
	for _, l := range text.Wrap(foot, text.Width) {
		fmt.Fprintln(t, l)
	}
}

// foot says how far the path is proved.
func (p *Path) foot() string {
	foot := "Predicted from the cluster's objects; no packet was sent."
	agree := p.Verdict.Agree
	switch {
	case p.NotProved != "":
		foot = "Predicted from the cluster's objects, not proved: " + p.NotProved + "."
	case p.Verdict.Observed == Accepted && p.Proof.Relayed:
		foot = "Predicted, and seen as far as the proxy, which calls an endpoint only for a client that completes the handshake."
	case agree != nil && *agree:
		foot = "Predicted, and seen: a packet went this way."
	case agree != nil:
		foot = "A probe did not go as predicted."
	}
	if p.Probe != nil && agree != nil {
		foot += p.effect()
	}
	if len(p.NotLooked) > 0 {
		foot += " Not known: " + strings.Join(p.NotLooked, ", ") + "."
	}
	return foot
}

// effect says what the probe did to the client and the server.
func (p *Path) effect() string {
	udp := strings.HasSuffix(p.To.Key, "/UDP")
	switch {
	case p.Probe.Live:
		return " It was the client's own packet; nothing was sent."
	case p.Probe.Count > 1:
		return fmt.Sprintf(" %d probes were sent.", p.Probe.Count)
	case udp:
		return " One datagram was sent."
	case p.Probe.Injected && p.Verdict.Observed == Delivered:
		return " One SYN was sent in the client's name; the server accepted no connection."
	case p.Probe.Injected || p.Verdict.Observed != Delivered:
		return " One SYN was sent in the client's name."
	}
	return " One connection was opened and closed."
}

// judges writes the rules of each node.
func (t *writer) judges(p *Path) {
	for _, h := range p.Hops {
		for i, r := range h.Rules {
			place := r.Table + " " + r.Chain
			if r.Handle > 0 {
				place += fmt.Sprintf(" #%d", r.Handle)
			}
			t.line(map[bool]string{true: h.Node}[i == 0], "  ", place, r.Field)
		}
	}
}

func pad(s string, n int) string {
	if d := n - utf8.RuneCountInString(s); d > 0 {
		return s + strings.Repeat(" ", d)
	}
	return s
}
