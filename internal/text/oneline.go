package text

import (
	"errors"
	"net/url"
	"strings"
)

// OneLine returns err with a text of one line, for logs and terminals. errors.Is and errors.As work as with err. It returns
// err itself if its text is one line, and nil for nil.
func OneLine(err error) error {
	if err == nil || !strings.Contains(err.Error(), "\n") {
		return err
	}
	return lineError{err}
}

// lineError is an error with a text of one line.
type lineError struct{ error }

// Error joins the lines: by a semicolon, or by a space after a line that ends with a colon.
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

// Unwrap returns the original error.
func (e lineError) Unwrap() error { return e.error }

// RequestError is OneLine for the error of an HTTP request, without the method and the URL. It is for callers that name the
// host.
func RequestError(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return OneLine(u.Err)
	}
	return OneLine(err)
}

// LastLine returns the last line of a program's output.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
