package text

import (
	"regexp"
	"strings"
)

// advice matches the advice in brackets of an error. It has more than one word, so "[::1]:80" is none.
var advice = regexp.MustCompile(` \[([\pL-][^\[\]]* [^\[\]]*)\]`)

// SplitHint splits the text of an error: "no agent runs here [start one first]" is a message and a hint.
func SplitHint(text string) (what, hint string) {
	var hints []string
	for _, m := range advice.FindAllStringSubmatch(text, -1) {
		hints = append(hints, m[1])
	}
	return advice.ReplaceAllString(text, ""), strings.Join(hints, "; ")
}
