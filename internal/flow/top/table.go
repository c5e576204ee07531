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
type column[R any] struct {
	head   string
	number bool
	text   func(*R) string
}

// columns returns the columns for a Frame.
func (f *Frame) columns(wide bool) (all []column[Row]) {
	if f.Service == "" && f.Namespace == "" {
		all = append(all, column[Row]{"NAMESPACE", false, func(r *Row) string { return r.Namespace }})
	}
	all = append(all, column[Row]{"SERVICE", false, func(r *Row) string {
		return strings.TrimPrefix(api.PortName{Name: api.Name{Name: r.Service}, Port: r.Port}.String(), "/")
	}})
	if f.Service != "" {
		all = append(all, column[Row]{"ENDPOINT", false, func(r *Row) string { return r.Endpoint.String() }})
	}
	all = append(all,
		column[Row]{"CONNECTIONS", true, func(r *Row) string { return strconv.Itoa(r.Connections) }},
		column[Row]{"NEW/S", true, func(r *Row) string { return short(r.NewPerSecond) }},
		column[Row]{"BYTES/S", true, func(r *Row) string { return short(r.BytesPerSecond) }})
	if f.Service == "" {
		all = append(all,
			column[Row]{"REJECTS/S", true, func(r *Row) string { return short(r.RejectsPerSecond) }},
			column[Row]{"DROPS/S", true, func(r *Row) string { return short(r.DropsPerSecond) }})
	}
	if f.Service != "" || wide {
		all = append(all, column[Row]{"UNANSWERED", true, func(r *Row) string { return strconv.Itoa(r.Unanswered) }})
	}
	if wide {
		all = append(all, column[Row]{"NODES", true, func(r *Row) string { return strconv.Itoa(r.Nodes) }})
	}
	if wide && f.Service == "" {
		all = append(all,
			column[Row]{"NEW", true, func(r *Row) string { return sum(r.New) }},
			column[Row]{"BYTES", true, func(r *Row) string { return sum(r.Bytes) }},
			column[Row]{"REJECTS", true, func(r *Row) string { return sum(r.Rejects) }},
			column[Row]{"DROPS", true, func(r *Row) string { return sum(r.Drops) }})
	}
	return all
}

// Lines returns the head and the rows of the table. If width is not 0, names are cut so that lines fit it.
func (f *Frame) Lines(wide bool, width int) []string { return tableOf(f.columns(wide), f.Rows, width) }

// tableOf returns the lines of a table.
func tableOf[R any](columns []column[R], rows []R, width int) []string {
	cells := make([][]string, 1, len(rows)+1)
	numbers := make([]bool, len(columns))
	for i, c := range columns {
		cells[0] = append(cells[0], c.head)
		numbers[i] = c.number
	}
	for i := range rows {
		row := make([]string, len(columns))
		for j, c := range columns {
			row[j] = c.text(&rows[i])
		}
		cells = append(cells, row)
	}
	widths := make([]int, len(columns))
	for _, row := range cells {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	fit(numbers, widths, width)
	lines := make([]string, len(cells))
	for i, row := range cells {
		lines[i] = line(numbers, widths, row)
	}
	return lines
}

// gap is the space between columns.
const gap = 2

// fit narrows the columns of names, the widest first, until a line fits.
func fit(numbers []bool, widths []int, width int) {
	const least = 8
	for width > 0 {
		total, widest := -gap, -1
		for i, w := range widths {
			total += w + gap
			if !numbers[i] && w > least && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if total <= width || widest < 0 {
			return
		}
		widths[widest]--
	}
}

func line(numbers []bool, widths []int, row []string) string {
	var b strings.Builder
	for i, cell := range row {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
		cell = cut(cell, widths[i])
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if numbers[i] {
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
	return writeTable(w, f.Lines(wide, 0), f.Nothing(), f.Summary(), f.Notes)
}

func writeTable(w io.Writer, lines []string, nothing, summary string, notes []string) error {
	var b strings.Builder
	if len(lines) == 1 { // the head
		lines[0] = nothing
	}
	b.WriteString(strings.Join(lines, "\n") + "\n\n" + summary + "\n")
	for _, n := range notes {
		b.WriteString(text.Indented(n, "") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
