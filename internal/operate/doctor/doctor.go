// Package doctor says what on a node is in the way of an agent, before it is installed and
// when something is wrong.
//
//	kernel, /proc, programs, API server ── probe ──→ Facts ── Examine ──→ Report: a line for each check
//
// It hides which facts matter and how much. It is pure: Facts in, lines out; package probe
// collects the facts. It promises that each line which is not ok says what to do, and that
// what could not be found out is said, with the reason, and never taken for well.
package doctor

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// A Level says how bad a line is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning" // an agent works, something else may not
	Failure Level = "failure" // an agent does not work
	Skipped Level = "skipped" // could not be found out
)

// A Line is what one check found.
type Line struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Do    string `json:"do,omitempty"`
}

// A Report has a line for each check, in the order in which a person would look.
type Report struct {
	Node  string `json:"node"`
	Lines []Line `json:"checks"`
}

// Failed reports whether an agent cannot work here.
func (r Report) Failed() bool { return r.count(Failure) > 0 }

func (r Report) count(level Level) (n int) {
	for _, l := range r.Lines {
		if l.Level == level {
			n++
		}
	}
	return n
}

// WriteTable implements output.Value. What to do is on a line of its own; wide shows it for
// all lines in a column.
func (r Report) WriteTable(w io.Writer, wide bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range r.Lines {
		level := string(l.Level)
		if l.Level == Failure {
			level = "FAILURE"
		}
		if wide {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", level, l.Check, l.Found, l.Do)
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", level, l.Check, l.Found)
		if l.Do != "" {
			fmt.Fprintf(tw, "\t\t→ %s\n", l.Do)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	var parts []string
	for _, level := range []Level{Failure, Warning, Skipped, OK} {
		if n := r.count(level); n > 0 {
			many := ""
			if n > 1 && (level == Failure || level == Warning) {
				many = "s"
			}
			parts = append(parts, fmt.Sprintf("%d %s%s", n, level, many))
		}
	}
	_, err := fmt.Fprintf(w, "\n%d checks on %s: %s\n", len(r.Lines), r.Node, strings.Join(parts, ", "))
	return err
}
