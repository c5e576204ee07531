package top

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/text"
)

// A column of the table. Numbers are on the right.
type column struct {
	head   string
	number bool
	text   func(*Row) string
}

// columns returns the columns for a Frame.
func (f *Frame) columns(wide bool) (all []column) {
	if f.Service == "" && f.Namespace == "" {
		all = append(all, column{"NAMESPACE", false, func(r *Row) string { return r.Namespace }})
	}
	all = append(all, column{"SERVICE", false, func(r *Row) string {
		return strings.TrimPrefix(api.PortName{Name: api.Name{Name: r.Service}, Port: r.Port}.String(), "/")
	}})
	if f.Service != "" {
		all = append(all, column{"ENDPOINT", false, func(r *Row) string { return r.Endpoint.String() }})
	}
	all = append(all,
		column{"CONNECTIONS", true, func(r *Row) string { return strconv.Itoa(r.Connections) }},
		column{"NEW/S", true, func(r *Row) string { return short(r.NewPerSecond) }},
		column{"BYTES/S", true, func(r *Row) string { return short(r.BytesPerSecond) }})
	if f.Service == "" {
		all = append(all,
			column{"REJECTS/S", true, func(r *Row) string { return short(r.RejectsPerSecond) }},
			column{"DROPS/S", true, func(r *Row) string { return short(r.DropsPerSecond) }})
	}
	if f.Service != "" || wide {
		all = append(all, column{"UNANSWERED", true, func(r *Row) string { return strconv.Itoa(r.Unanswered) }})
	}
	if wide {
		all = append(all, column{"NODES", true, func(r *Row) string { return strconv.Itoa(r.Nodes) }})
	}
	if wide && f.Service == "" {
		all = append(all,
			column{"NEW", true, func(r *Row) string { return sum(r.New) }},
			column{"BYTES", true, func(r *Row) string { return sum(r.Bytes) }},
			column{"REJECTS", true, func(r *Row) string { return sum(r.Rejects) }},
			column{"DROPS", true, func(r *Row) string { return sum(r.Drops) }})
	}
	return all
}

// Lines returns the head and the rows of the table. If width is not 0, names are cut so that lines fit it.
func (f *Frame) Lines(wide bool, width int) []string {
	columns := f.columns(wide)
	cells := make([][]string, 0, len(f.Rows)+1)
	head := make([]string, len(columns))
	for i, c := range columns {
		head[i] = c.head
	}
	cells = append(cells, head)
	for i := range f.Rows {
		row := make([]string, len(columns))
		for j, c := range columns {
			row[j] = c.text(&f.Rows[i])
		}
		cells = append(cells, row)
	}
	widths := make([]int, len(columns))
	for _, row := range cells {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	fit(columns, widths, width)
	lines := make([]string, len(cells))
	for i, row := range cells {
		lines[i] = line(columns, widths, row)
	}
	return lines
}

// gap is the space between columns.
const gap = 2

// fit narrows the columns of names, the widest first, until a line fits.
func fit(columns []column, widths []int, width int) {
	const least = 8
	for width > 0 {
		total, widest := -gap, -1
		for i, w := range widths {
			total += w + gap
			if !columns[i].number && w > least && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if total <= width || widest < 0 {
			return
		}
		widths[widest]--
	}
}

func line(columns []column, widths []int, row []string) string {
	var b strings.Builder
	for i, cell := range row {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		cell = cut(cell, widths[i])
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if columns[i].number {
			b.WriteString(pad + cell)
		} else {
			b.WriteString(cell + pad)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// cut shortens a text to a number of letters.
func cut(text string, to int) string {
	if utf8.RuneCountInString(text) <= to {
		return text
	}
	return string([]rune(text)[:max(0, to-1)]) + "…"
}

// short returns a rate with at most three digits and a unit of thousands.
func short(f *float64) string {
	if f == nil {
		return "-"
	}
	v := *f
	if v == 0 {
		return "0"
	}
	for _, unit := range []string{"", "k", "M", "G", "T"} {
		switch {
		case v < 9.95:
			return strconv.FormatFloat(v, 'f', 1, 64) + unit
		case v < 999.5 || unit == "T":
			return strconv.FormatFloat(v, 'f', 0, 64) + unit
		}
		v /= 1000
	}
	return ""
}

func sum(n *uint64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(*n, 10)
}

// Summary says how many nodes, rows and connections the Frame has.
func (f *Frame) Summary() string {
	open, fresh := 0, (*float64)(nil)
	for _, r := range f.Rows {
		open += r.Connections
		if r.NewPerSecond != nil {
			sum := *r.NewPerSecond
			if fresh != nil {
				sum += *fresh
			}
			fresh = &sum
		}
	}
	nodes := plural(f.Nodes, "node")
	if f.Nodes != f.Of {
		nodes = fmt.Sprintf("%d of %s", f.Nodes, plural(f.Of, "node"))
	}
	text := nodes + ", " + plural(open, "connection")
	if fresh != nil {
		text += ", " + short(fresh) + " new a second"
	}
	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Nothing says that the Frame has no row, and what to do.
func (f *Frame) Nothing() string {
	switch {
	case f.Nodes == 0:
		return "No node has answered yet."
	case f.Filter != "":
		return fmt.Sprintf("No row has %q in its name.", f.Filter)
	case f.Service != "":
		return fmt.Sprintf("No connection to Service %s/%s on these nodes.", f.Namespace, f.Service)
	case f.Namespace != "":
		return fmt.Sprintf("No connection to a Service in namespace %s [-A shows all namespaces].", f.Namespace)
	}
	return "No connection to a Service on these nodes."
}

// WriteTable writes the table for people. Names are whole, so lines may be long.
func (f Frame) WriteTable(w io.Writer, wide bool) error {
	var b strings.Builder
	if len(f.Rows) == 0 {
		b.WriteString(f.Nothing() + "\n")
	} else {
		b.WriteString(strings.Join(f.Lines(wide, 0), "\n") + "\n")
	}
	b.WriteString("\n" + f.Summary() + "\n")
	for _, n := range f.Notes {
		b.WriteString(text.Indented(n, "") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
