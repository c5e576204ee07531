package api

import (
	"fmt"
	"strings"
)

// A Problem is an invalid part of an object that was left out, in words
// for the object's owner. Reason is CamelCase, as in a Kubernetes event.
type Problem struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

const (
	// ProblemLimit is the number of problems of one object that are listed. If a thousand parts are wrong, the first ones
	// are enough.
	ProblemLimit = 20
	// messageLimit limits a Problem's Message in bytes, as the API server limits the text of an event.
	messageLimit = 1024
)

// furtherProblems stands for all problems after the ProblemLimit.
var furtherProblems = Problem{"FurtherProblems", "further parts are left out for such reasons; they are named when these are corrected"}

// AddProblem appends a Problem to a list, which it keeps within ProblemLimit.
func AddProblem(list []Problem, reason, format string, args ...any) []Problem {
	switch n := len(list); {
	case n < ProblemLimit:
		return append(list, Problem{reason, Cut(fmt.Sprintf(format, args...), messageLimit)})
	case n == ProblemLimit:
		return append(list, furtherProblems)
	}
	return list
}

// Cut returns at most n bytes of text, without half a character at the end.
func Cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xc0 == 0x80 {
		n--
	}
	return strings.Clone(text[:n])
}
