package xtables

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"strings"
)

// A Line is one line of iptables-save's output.
type Line struct {
	Kind  Kind
	Table string // the table that the line belongs to
	Chain string // empty for a Table
	// Text is the policy of a base chain ("ACCEPT"), "-" for other chains, and a rule's text behind "-A CHAIN ".
	Text string
}

// A Kind says what a Line is.
type Kind uint8

// The kinds. Comments, "COMMIT" and unknown lines have no kind.
const (
	Table Kind = iota // "*nat"
	Chain             // ":KUBE-SERVICES - [0:0]"
	Rule              // "-A KUBE-SERVICES …"
)

// maxLine bounds a line, in bytes. iptables' matches and targets take some kilobytes at most.
const maxLine = 1 << 20

// Scan calls f for each line of iptables-save's output.
func Scan(r io.Reader, f func(Line)) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLine)
	table := ""
	for s.Scan() {
		text := s.Text()
		if len(text) < 2 {
			continue
		}
		switch {
		case text[0] == '*':
			table = strings.TrimSpace(text[1:])
			f(Line{Kind: Table, Table: table})
		case table == "":
		case text[0] == ':':
			name, rest, _ := strings.Cut(text[1:], " ")
			policy, _, _ := strings.Cut(rest, " ")
			f(Line{Chain, table, name, policy})
		case strings.HasPrefix(text, "-A "):
			name, rule, _ := strings.Cut(text[3:], " ")
			f(Line{Rule, table, name, strings.TrimSpace(rule)})
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read iptables rules: %w", err)
	}
	return nil
}

// A Word is one word of a rule.
type Word struct {
	Text   string // without its quotes
	Quoted bool   // a quoted word is a value, never an option
}

// Words yields the words of a rule in iptables-save's output.
func Words(rule string) iter.Seq[Word] {
	return func(yield func(Word) bool) {
		for rest := strings.TrimLeft(rule, " "); rest != ""; rest = strings.TrimLeft(rest, " ") {
			var w Word
			if w.Quoted = rest[0] == '"'; w.Quoted {
				w.Text, rest = unquote(rest[1:])
			} else {
				w.Text, rest, _ = strings.Cut(rest, " ")
			}
			if !yield(w) {
				return
			}
		}
	}
}

// unquote reads up to the closing quote. It returns the word and the text behind the quote.
func unquote(text string) (word, rest string) {
	end := strings.IndexAny(text, `"\`)
	if end >= 0 && text[end] == '"' {
		return text[:end], text[end+1:]
	}
	var b strings.Builder
	i := 0
	for ; i < len(text) && text[i] != '"'; i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String(), text[min(i+1, len(text)):]
}

// Target returns the target of a rule: a chain, or a word like "DNAT". It is empty if the rule has no target.
func Target(rule string) string {
	option := ""
	for w := range Words(rule) {
		switch option {
		case "-j", "-g":
			return w.Text
		case "--comment": // the text may look like an option
			option = ""
			continue
		}
		if option = w.Text; w.Quoted {
			option = ""
		}
	}
	return ""
}

// Quote quotes a comment as iptables-save does. iptables-save does not quote a comment of letters, digits, "-" and "_".
func Quote(s string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
	}
	if s == "" || strings.IndexFunc(s, func(c rune) bool { return !plain(c) }) < 0 {
		return s
	}
	if strings.ContainsAny(s, `\"'`) {
		s = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `'`, `\'`).Replace(s)
	}
	return `"` + s + `"`
}
