package service

import (
	"testing"
	"time"
)

// TestBrake: which accounts are believed, and when.
func TestBrake(t *testing.T) {
	type account struct {
		after     time.Duration // the one before
		had, kept int
		foreign   bool
		want      bool
	}
	const minute = time.Minute
	for name, test := range map[string]struct {
		bound    time.Duration
		accounts []account
	}{
		"the first":                   {minute, []account{{0, 0, 0, false, true}}},
		"nothing is missing":          {minute, []account{{0, 1000, 1000, false, true}}},
		"three quarters are missing":  {minute, []account{{0, 1000, 250, false, true}}},
		"more are missing":            {minute, []account{{0, 1000, 249, false, false}}},
		"all of a few are missing":    {minute, []account{{0, 8, 0, false, true}}},
		"all of some are missing":     {minute, []account{{0, 9, 0, false, false}}},
		"another cluster's":           {minute, []account{{0, 2, 1, true, false}}},
		"no bound":                    {0, []account{{0, 1000, 0, true, true}}},
		"it stays so":                 {minute, []account{{0, 100, 0, false, false}, {minute / 2, 100, 0, false, false}, {minute / 2, 100, 0, false, true}}},
		"what is left changes":        {minute, []account{{0, 100, 0, false, false}, {minute, 100, 3, false, true}}},
		"all is there again":          {minute, []account{{0, 100, 0, false, false}, {minute / 2, 100, 100, false, true}, {minute / 2, 100, 0, false, false}, {minute, 100, 0, false, true}}},
		"believed, and again":         {minute, []account{{0, 100, 0, false, false}, {minute, 100, 0, false, true}, {0, 100, 0, false, false}}},
		"another's, then ours, empty": {minute, []account{{0, 100, 90, true, false}, {minute / 2, 100, 0, false, false}, {minute / 2, 100, 0, false, true}}},
	} {
		b, now := Brake{Bound: test.bound}, time.Unix(1_000_000, 0)
		for i, a := range test.accounts {
			now = now.Add(a.after)
			if got := b.Believe(now, a.had, a.kept, a.foreign); got != a.want || b.Holds() == a.want {
				t.Errorf("%s: account %d: believed: %v, doubts: %v; want %v", name, i, got, b.Holds(), a.want)
			}
		}
	}
}

// TestBrakeSome: where there is always something, that all is gone is doubted.
func TestBrakeSome(t *testing.T) {
	for had, want := range map[int]bool{1: true, 2: false, 8: false} {
		b := Brake{Bound: time.Minute, Some: true}
		if got := b.Believe(time.Unix(1_000_000, 0), had, 0, false); got != want {
			t.Errorf("that none of %d is left is believed: %v", had, got)
		}
	}
	b := Brake{Bound: time.Minute, Some: true}
	if !b.Believe(time.Unix(1_000_000, 0), 9, 1, false) {
		t.Error("that one of nine is left is not believed")
	}
}
