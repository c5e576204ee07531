package text

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"plain":                           "plain",
		"a\nb":                            "a; b",
		"a\nb\n":                          "a; b",
		"invalid configuration:\n\t- x\n": "invalid configuration: - x",
		"\n\na  b\n\n\n  c":               "a b; c",
		"\n":                              "",
	} {
		if got := OneLine(errors.New(text)).Error(); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	if OneLine(nil) != nil {
		t.Error("no error became one")
	}
	if err := errors.New("one"); OneLine(err) != err {
		t.Error("an error of one line was wrapped")
	}
}

// TestChain: what is in the chain is found through any number of wraps.
func TestChain(t *testing.T) {
	_, missing := os.Open("/does/not/exist")
	other := errors.New("other")
	err := fmt.Errorf("cleanup: %w", OneLine(errors.Join(fmt.Errorf("mode ipvs: %w", missing), other)))
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, other) {
		t.Errorf("%v: the chain is cut", err)
	}
	var p *fs.PathError
	if !errors.As(err, &p) || p.Path != "/does/not/exist" {
		t.Errorf("%v: the type is not found", err)
	}
}

func TestHint(t *testing.T) {
	for _, c := range [][3]string{
		{"plain", "plain", ""},
		{"no agent here [start one first]", "no agent here", "start one first"},
		{"a [do this now]: b [--or that]", "a: b", "do this now; --or that"},
		{"dial [::1]:80: refused", "dial [::1]:80: refused", ""},
		{"name [a-z0-9-]{1,20} wanted", "name [a-z0-9-]{1,20} wanted", ""},
	} {
		if what, hint := SplitHint(c[0]); what != c[1] || hint != c[2] {
			t.Errorf("%q: %q and %q, want %q and %q", c[0], what, hint, c[1], c[2])
		}
	}
}

func TestLast(t *testing.T) {
	for text, want := range map[string]string{"": "", "a": "a", "a\nb": "b", "a\r\nb \n\n": "b"} {
		if got := LastLine(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
