// Package oneline puts errors that have several lines into one, for logs and terminals.
//
//	errors.Join(a, b), YAML, CoreDNS ─→ Error ─→ "a; b"   errors.Is, errors.As: as before
//
// It hides how lines are joined. It promises that the chain of wrapped errors stays whole:
// what errors.Is and errors.As find in an error, they find in its one line too.
package text

import (
	"errors"
	"net/url"
	"strings"
)

// Error returns err with a text of one line; err itself if it has one already; nil for nil.
func OneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	return lineError{err}
}

// lineError is an error with another text.
type lineError struct{ error }

// Error joins the lines: by a semicolon, or by a space after a line that announces the
// next one.
func (e lineError) Error() string {
	var text strings.Builder
	for line := range strings.Lines(e.error.Error()) {
		line = strings.Join(strings.Fields(line), " ")
		switch so := text.String(); {
		case line == "":
			continue
		case so == "":
		case strings.HasSuffix(so, ":"), strings.HasSuffix(so, ";"), strings.HasSuffix(so, ","):
			text.WriteString(" ")
		default:
			text.WriteString("; ")
		}
		text.WriteString(line)
	}
	return text.String()
}

// Unwrap returns the error as it was.
func (e lineError) Unwrap() error { return e.error }

// Request is Error for what came of a request whose host its caller names: without the method and the URL, which
// say nothing more.
func RequestError(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return OneLine(u.Err)
	}
	return OneLine(err)
}

// Last is the last line of what a program wrote.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
