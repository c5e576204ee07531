package path

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/fairway-net/fairway/internal/text"
)

// Sizes of the picture in pixels.
const (
	svgColumn = 34 // letters in a line of a box
	svgLetter = 7.25
	svgLine   = 17
	svgBox    = svgColumn*svgLetter + 24
	svgGap    = 36
	svgMargin = 20
	svgTop    = 64 // of the boxes, below the head
)

// svgStyle has the colors of both schemes.
const svgStyle = `text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328}
.head{font-size:15px;font-weight:bold}.name{font-weight:bold}.dim{fill:#59636e}
.box{fill:#f6f8fa;stroke:#8c959f}.bad{stroke:#cf222e;stroke-width:2}.paper{fill:#fff}
.ok{fill:#1a7f37}.no{fill:#cf222e}.maybe{fill:#9a6700}.way{stroke:#57606a;stroke-width:2}.tip{fill:#57606a}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.box{fill:#161b22;stroke:#59636e}.paper{fill:#0d1117}
.ok{fill:#3fb950}.no{fill:#f85149}.maybe{fill:#d29922}.bad{stroke:#f85149}.way{stroke:#9198a1}.tip{fill:#9198a1}}`

// A svgRow is a line of a box.
type svgRow struct{ mark, class, text string }

// A pictureBox is one place on the way.
type pictureBox struct {
	name string
	rows []svgRow
	bad  bool // the packet ends here
}

// WriteSVG draws the path: a box for each place, in the order of the packet, and the causes below.
func (p *Path) WriteSVG(w io.Writer) error {
	boxes := p.boxes()
	height := 0
	for _, b := range boxes {
		height = max(height, 44+svgLine*len(b.rows))
	}
	width := 2*svgMargin + float64(len(boxes))*(svgBox+svgGap) - svgGap
	foot := p.causes(int((width - 2*svgMargin) / svgLetter))
	var out bytes.Buffer
	total := svgTop + height + 24 + svgLine*len(foot) + svgMargin
	t := writer{}
	t.head(p)
	head := strings.Join(strings.Fields(t.String()), " ")
	width = max(width, 2*svgMargin+float64(utf8.RuneCountInString(head))*9.1)
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img" aria-label="%s">`+"\n", width, total, width, total, escaped(head))
	fmt.Fprintf(&out, "<style>%s</style>\n<rect class=\"paper\" width=\"100%%\" height=\"100%%\"/>\n", svgStyle)
	fmt.Fprintf(&out, `<text class="head" x="%d" y="36">%s</text>`+"\n", svgMargin, escaped(head))
	x := float64(svgMargin)
	for i, b := range boxes {
		b.draw(&out, x, height)
		x += svgBox
		if i < len(boxes)-1 && !b.bad {
			fmt.Fprintf(&out, `<path class="way" d="M%.0f %d h%d"/><path class="tip" d="M%.0f %d l-8 -5 v10 z"/>`+"\n", x+4, svgTop+18, svgGap-14, x+svgGap-4, svgTop+18)
		}
		x += svgGap
	}
	for i, line := range foot {
		fmt.Fprintf(&out, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", line.class, svgMargin, svgTop+height+32+svgLine*i, escaped(line.text))
	}
	out.WriteString("</svg>\n")
	_, err := out.WriteTo(w)
	return err
}

// draw writes one box.
func (b pictureBox) draw(out *bytes.Buffer, x float64, height int) {
	class := "box"
	if b.bad {
		class += " bad"
	}
	fmt.Fprintf(out, `<rect class="%s" x="%.0f" y="%d" width="%.0f" height="%d" rx="6"/>`+"\n", class, x, svgTop, svgBox, height)
	fmt.Fprintf(out, `<text class="name" x="%.0f" y="%d">%s</text>`+"\n", x+12, svgTop+22, escaped(b.name))
	for i, r := range b.rows {
		y := svgTop + 44 + svgLine*i
		if r.mark != "" {
			fmt.Fprintf(out, `<text class="%s" x="%.0f" y="%d">%s</text>`, r.class, x+12, y, r.mark)
			fmt.Fprintf(out, `<text x="%.0f" y="%d">%s</text>`+"\n", x+12+2*svgLetter, y, escaped(r.text))
		} else {
			fmt.Fprintf(out, `<text class="dim" x="%.0f" y="%d">%s</text>`+"\n", x+12+2*svgLetter, y, escaped(r.text))
		}
	}
}

// boxes returns the places of the way.
func (p *Path) boxes() []pictureBox {
	client := pictureBox{name: "outside"}
	switch p.From.Kind {
	case "Pod":
		client.name = "pod " + p.From.NS + "/" + p.From.Name
	case "Node":
		client.name = "node " + p.From.Name
	}
	client.add("", "", p.From.IP)
	if p.From.Node != "" {
		client.add("", "", "on "+p.From.Node)
	}
	all := []pictureBox{client}
	for _, s := range p.Steps {
		name := cmp.Or(placeless[s.Kind], s.Node)
		if all[len(all)-1].name != name || len(all) == 1 {
			all = append(all, pictureBox{name: name})
		}
		last := &all[len(all)-1]
		last.step(s, p.Verdict.Observed != "")
		if s.Kind == KindService {
			last.candidates(p)
		}
	}
	if end := cmp.Or(p.Verdict.Observed, p.Verdict.Predicted); end != Delivered && end != Accepted && end != Sometimes {
		all[len(all)-1].bad = true
	}
	if len(p.Reply) > 0 {
		reply := pictureBox{name: "reply"}
		for _, s := range p.Reply {
			reply.step(s, p.Verdict.Observed != "")
		}
		all = append(all, reply)
	}
	return all
}

// add adds a text, broken into lines. The first has the mark.
func (b *pictureBox) add(mark, class, words string) {
	for i, line := range text.Wrap(words, svgColumn-2) {
		if line == "" {
			continue
		}
		if i > 0 && mark != "" {
			mark, line = " ", "  "+line
		}
		b.rows = append(b.rows, svgRow{mark, class, line})
	}
}

// step adds a step.
func (b *pictureBox) step(s Step, probed bool) {
	mark, class := "✗", "no"
	switch {
	case probed && s.Observed == "" && s.Node != "":
		mark, class = "?", "maybe"
	case s.State == Accepted || s.State == Delivered:
		mark, class = "✓", "ok"
	case s.State == Sometimes:
		mark, class = "!", "maybe"
	}
	b.add(mark, class, s.Text)
	b.add("", "", s.Detail)
}

// candidates adds the endpoints of the Service.
func (b *pictureBox) candidates(p *Path) {
	for i, c := range p.Candidates {
		if i == maxShown {
			b.add("", "", fmt.Sprintf("and %d more", len(p.Candidates)-i))
			return
		}
		mark := "·"
		if c.Followed {
			mark = "▸"
		}
		what := share(c.Share)
		if !c.Kept {
			what = "left out: " + c.Reason
		} else if c.Denied != "" {
			what += ", denied by " + c.Denied
		}
		b.add(mark, "dim", strings.Join(strings.Fields(c.Addr+" "+c.Pod), " "))
		b.add("", "", strings.TrimPrefix(c.Node+", "+what, ", "))
	}
}

// causes returns the findings, and how far the path is proved.
func (p *Path) causes(letters int) (all []svgRow) {
	letters = max(letters, text.Width)
	for _, f := range p.Findings {
		class := map[Level]string{Fatal: "no", Warning: "maybe"}[f.Level]
		for _, line := range text.Wrap(f.Text, letters) {
			all = append(all, svgRow{"", class, line})
		}
		if f.Advice != "" {
			all = append(all, svgRow{"", "dim", "[" + f.Advice + "]"})
		}
	}
	for _, line := range text.Wrap(p.foot(), letters) {
		all = append(all, svgRow{"", "dim", line})
	}
	return all
}

// escaped returns text for XML. What XML cannot hold, such as control characters, becomes U+FFFD.
func escaped(s string) string {
	var b bytes.Buffer
	if err := xml.EscapeText(&b, []byte(s)); err != nil {
		return ""
	}
	return b.String()
}
