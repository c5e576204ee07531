// Package doctor judges whether a node can run an agent, before an installation or when something is wrong.
//
//	kernel, /proc, programs, API server ── probe ──→ Facts ── Examine ──→ Report: a line for each check
//
// The package is pure: package probe collects the facts. Each line that is not ok says what to do. A fact that could
// not be read is reported with the reason, and never counts as ok.
package doctor

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// A Level is the severity of a line.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning" // an agent works, another program may not
	Failure Level = "failure" // an agent does not work
	Skipped Level = "skipped" // the fact could not be read
)

// A Line is the result of one check.
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

// WriteTable implements output.Value. Advice is on a line of its own; wide adds a column with the advice of all lines.
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
