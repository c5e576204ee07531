// Package suggest finds the word that a person meant.
//
//	"clustercidr" ── of the flags ──→ "cluster-cidr"
//
// It hides how near two words are. It promises a word of the list, or none: a suggestion that
// has little to do with what was written helps nobody.
package text

import "strings"

// Closest returns the word that is nearest to text; empty if none is near.
func Closest(text string, words []string) string {
	best, least := "", max(2, len(text)/3)+1
	for _, w := range words {
		if d := distance(plain(text), plain(w)); d < least {
			best, least = w, d
		}
	}
	return best
}

// plain is a word without what people forget.
func plain(text string) string {
	return strings.NewReplacer("-", "", "_", "", ".", "").Replace(strings.ToLower(text))
}

// distance is how many letters must be added, removed or replaced to make a of b
// (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
