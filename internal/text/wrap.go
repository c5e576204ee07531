package text

import (
	"strings"
	"unicode/utf8"
)

// Width is the number of columns of a terminal.
const Width = 80

// Wrap splits a text into lines of at most n letters. A longer word has a line of its own.
func Wrap(text string, n int) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		last := len(lines) - 1
		if last >= 0 && utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) <= n {
			lines[last] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

// Indented is Wrap for a terminal. The lines begin with indent, and all but the first with two more columns.
func Indented(text, indent string) string {
	return indent + strings.Join(Wrap(text, Width-len(indent)-2), "\n"+indent+"  ")
}
