// Package text has small functions for texts: errors in one line, hints, and suggestions for a misspelt word.
//
//	"clustercidr" ── Closest, of the flags ──→ "cluster-cidr"
//	errors.Join(a, b), YAML, CoreDNS ── OneLine ──→ "a; b"
package text

import "strings"

// Closest returns the word that is most similar to text; empty if none is similar.
func Closest(text string, words []string) string {
	best, least := "", max(2, len(text)/3)+1
	for _, w := range words {
		if d := distance(plain(text), plain(w)); d < least {
			best, least = w, d
		}
	}
	return best
}

// plain returns a word without the characters that people forget.
func plain(text string) string {
	return strings.NewReplacer("-", "", "_", "", ".", "").Replace(strings.ToLower(text))
}

// distance returns the number of letters to add, remove or replace between a and b (Levenshtein).
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
