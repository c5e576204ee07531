package text

import "testing"

// TestIndented: lines fit a terminal, except for a word that is longer.
func TestIndented(t *testing.T) {
	long := "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
	for text, want := range map[string]string{
		"": "  ", "a b": "  a b", "a " + long + " b": "  a\n    " + long + "\n    b",
		"→ 34567890 234567890 234567890 234567890 234567890 234567890 234567890 23456 z": "  → 34567890 234567890 234567890 234567890 234567890 234567890 234567890 23456\n    z",
	} {
		if got := Indented(text, "  "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
