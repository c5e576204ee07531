package agent

import (
	"slices"
	"testing"
)

// TestTwoWriters: neither writer of a condition removes the message of the other.
func TestTwoWriters(t *testing.T) {
	var got []string
	a, b := twoWriters(func(message string) { got = append(got, message) })
	for _, write := range []func(){func() { a("") }, func() { b("full") }, func() { a("") }, func() { a("fragments") }, func() { b("") }, func() { a("") }} {
		write()
	}
	if want := []string{"", "full", "full", "fragments; full", "fragments", ""}; !slices.Equal(got, want) {
		t.Errorf("the condition was %q, want %q", got, want)
	}
}
