package text

import (
	"regexp"
	"strings"
)

// advice is what an error says in brackets: more than one word, so that "[::1]:80" is none.
var advice = regexp.MustCompile(` \[([\pL-][^\[\]]* [^\[\]]*)\]`)

// Hint parts the text of an error from what it advises: "no agent runs here [start one first]"
// is what is wrong, and a hint.
func SplitHint(text string) (what, hint string) {
	var hints []string
	for _, m := range advice.FindAllStringSubmatch(text, -1) {
		hints = append(hints, m[1])
	}
	return advice.ReplaceAllString(text, ""), strings.Join(hints, "; ")
}
