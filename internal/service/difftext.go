package service

import (
	"fmt"
	"io"
	"strings"
)

// WriteDiff writes how a table must change to be another, and reports whether it must:
// lines with "-" are only in have, lines with "+" only in want.
func WriteDiff(w io.Writer, have, want *Table) (differ bool, err error) {
	var text strings.Builder
	write := func(sign string, lines []string) {
		for _, line := range lines {
			fmt.Fprintln(&text, sign, line)
		}
	}
	for _, c := range Diff(have, want) {
		if c.Old != nil {
			write("-", c.Old.Lines())
		}
		if c.New != nil {
			write("+", c.New.Lines())
		}
	}
	if !have.Settings.Equal(want.Settings) {
		write("-", strings.Split(have.Settings.String(), "\n"))
		write("+", strings.Split(want.Settings.String(), "\n"))
	}
	_, err = io.WriteString(w, text.String())
	return text.Len() > 0, err
}

// Only returns the table of one Service; nil if the table has nothing of it.
func (t *Table) Only(name Name) *Table {
	e := t.Entry(name)
	if e == nil {
		return nil
	}
	return NewTable(t.Settings, e.Frontends)
}
