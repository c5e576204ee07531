// Command diagram draws docs/fairway.svg: the way of an object from the API server to the kernel, and the way of a
// packet.
//
//	boxes (below) ─▶ does the code have these names? ─▶ SVG
//
// Every name in a box is a package, or a chain, map or set of mode nftables. The command fails if the code no longer
// has the name, so the picture is always current.
package main

import (
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A box is one step, named as in the code.
type box struct {
	x, y   int
	name   string // in the code
	text   string // the text below the name
	kernel bool   // a name in the ruleset, not a package
	to     []int  // the boxes that its arrows lead to
}

const (
	width, height = 170, 56
	stepX, stepY  = 200, 100
)

// boxes are on a grid of stepX and stepY.
var boxes = []box{
	{0, 0, "internal/kube", "lists and watches Services, EndpointSlices, Nodes", false, []int{1}},
	{1, 0, "internal/service", "decides: one table a node", false, []int{2}},
	{2, 0, "internal/proxy", "hands changes on, tries again", false, []int{3, 4}},
	{3, 0, "internal/datapath", "nftables iptables ipvs userspace", false, []int{9}},
	{2, 1, "internal/flow", "which connections became wrong", false, []int{5}},
	{1, 1, "internal/flow/conntrack", "ends them", false, nil},
	{0, 3, "services", "chain, from prerouting and output", true, []int{7}},
	{1, 3, "frontends4", "map: address . protocol . port", true, []int{8}},
	{2, 3, "dispatch", "map: the chain that does it", true, []int{9, 10}},
	{3, 3, "endpoints4", "map: slot to address of a pod, dnat", true, nil},
	{3, 4, "refused", "chain: no endpoint, reject", true, nil},
}

func main() {
	out := filepath.Join("docs", "fairway.svg")
	text, err := draw(".")
	if err == nil {
		err = os.WriteFile(out, []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "diagram:", err)
		os.Exit(1)
	}
}

// draw returns the picture for the code at root.
func draw(root string) (string, error) {
	ruleset, err := os.ReadFile(filepath.Join(root, "internal/datapath/nftables/ruleset.nft.tmpl"))
	if err != nil {
		return "", err
	}
	for _, b := range boxes {
		if b.kernel {
			kind, _, _ := strings.Cut(strings.TrimRight(b.text, " "), " ")
			kind = strings.Trim(kind, ",:")
			if !regexp.MustCompile(`(?m)^\t` + kind + ` ` + regexp.QuoteMeta(b.name) + ` \{`).Match(ruleset) {
				return "", fmt.Errorf("the ruleset of mode nftables has no %s %s any more: change boxes in hack/diagram", kind, b.name)
			}
		} else if _, err := os.Stat(filepath.Join(root, b.name)); err != nil {
			return "", fmt.Errorf("%w: change boxes in hack/diagram", err)
		}
	}
	var s strings.Builder
	picture(&s)
	return s.String(), nil
}

// picture writes the SVG.
func picture(w io.Writer) {
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">
<title>Fairway: from the API server to a pod</title>
<desc>Written by go run ./hack/diagram from the names in the code.</desc>
<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#456"/></marker></defs>
<rect width="100%%" height="100%%" fill="#fff"/>
`, 4*stepX+20, 5*stepY+30)
	caption(w, 0, "An object's way, in the agent of each node")
	caption(w, 3, "A packet's way, in the kernel (mode nftables)")
	for _, b := range boxes {
		for _, to := range b.to {
			arrow(w, b, boxes[to])
		}
	}
	for _, b := range boxes {
		x, y := b.at()
		fill := "#e8f1fb"
		if b.kernel {
			fill = "#eef7e8"
		}
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="%d" rx="6" fill="%s" stroke="#456"/>`+"\n", x, y, width, height, fill)
		fmt.Fprintf(w, `<text x="%d" y="%d" font-weight="bold" font-family="monospace" font-size="12">%s</text>`+"\n", x+8, y+18, html.EscapeString(b.name))
		for i, line := range wrap(b.text, 30) {
			fmt.Fprintf(w, `<text x="%d" y="%d">%s</text>`+"\n", x+8, y+33+13*i, html.EscapeString(line))
		}
	}
	fmt.Fprintln(w, "</svg>")
}

// at is the box's upper left corner.
func (b box) at() (x, y int) { return b.x*stepX + 20, b.y*stepY + 30 }

func caption(w io.Writer, row int, text string) {
	fmt.Fprintf(w, `<text x="20" y="%d" font-size="13" fill="#234">%s</text>`+"\n", row*stepY+20, text)
}

// arrow draws an arrow between the nearest edges of two boxes.
func arrow(w io.Writer, from, to box) {
	x1, y1 := from.at()
	x2, y2 := to.at()
	switch {
	case to.x > from.x:
		x1 += width
		y1, y2 = y1+height/2, y2+height/2
	case to.x < from.x:
		x2 += width
		y1, y2 = y1+height/2, y2+height/2
	default:
		x1, x2 = x1+width/2, x2+width/2
		y1 += height
	}
	fmt.Fprintf(w, `<path d="M%d,%d L%d,%d" stroke="#456" fill="none" marker-end="url(#a)"/>`+"\n", x1, y1, x2, y2)
}

// wrap breaks a text between words.
func wrap(text string, most int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > most {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}
