package liveness

import (
	"bytes"
	"slices"
	"testing"
)

// FuzzLines: whatever is written to the socket, it is read in lines of bounded size, or refused.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"dead\":[\"b\",\"a\"]}\n{}\n"))
	f.Add([]byte("{\"dead\":null}\n[]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		err := readLines(bytes.NewReader(b), func(l line) bool {
			if n++; !slices.IsSorted(l.Dead) {
				t.Errorf("%q is not sorted", l.Dead)
			}
			return true
		})
		if lines := bytes.Count(b, []byte("\n")) + 1; n > lines {
			t.Errorf("%d of %d lines were read, error %v", n, lines, err)
		}
	})
}
