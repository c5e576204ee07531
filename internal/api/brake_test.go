package api

import (
	"testing"
	"time"
)

// TestBrake: the accounts that the brake believes, and the time of each decision.
func TestBrake(t *testing.T) {
	type account struct {
		after     time.Duration // after the account before
		had, kept int
		want      bool
	}
	const minute = time.Minute
	for name, test := range map[string]struct {
		bound    time.Duration
		accounts []account
	}{
		"the first":                  {minute, []account{{0, 0, 0, true}}},
		"nothing is missing":         {minute, []account{{0, 1000, 1000, true}}},
		"three quarters are missing": {minute, []account{{0, 1000, 250, true}}},
		"more are missing":           {minute, []account{{0, 1000, 249, false}}},
		"all of a few are missing":   {minute, []account{{0, 8, 0, true}}},
		"all of some are missing":    {minute, []account{{0, 9, 0, false}}},
		"no bound":                   {0, []account{{0, 1000, 0, true}}},
		"it stays so":                {minute, []account{{0, 100, 0, false}, {minute / 2, 100, 0, false}, {minute / 2, 100, 0, true}}},
		"what is left changes":       {minute, []account{{0, 100, 0, false}, {minute, 100, 3, true}}},
		"all is there again":         {minute, []account{{0, 100, 0, false}, {minute / 2, 100, 100, true}, {minute / 2, 100, 0, false}, {minute, 100, 0, true}}},
		"believed, and again":        {minute, []account{{0, 100, 0, false}, {minute, 100, 0, true}, {0, 100, 0, false}}},
	} {
		b, now := Brake{Bound: test.bound}, time.Unix(1_000_000, 0)
		for i, a := range test.accounts {
			now = now.Add(a.after)
			if got := b.Believe(now, a.had, a.kept); got != a.want || b.Holds() == a.want {
				t.Errorf("%s: account %d: believed: %v, doubts: %v; want %v", name, i, got, b.Holds(), a.want)
			}
		}
	}
}

// TestBrakeSome: if there is always some data, an account without any data is doubted.
func TestBrakeSome(t *testing.T) {
	for had, want := range map[int]bool{1: true, 2: false, 8: false} {
		b := Brake{Bound: time.Minute, Some: true}
		if got := b.Believe(time.Unix(1_000_000, 0), had, 0); got != want {
			t.Errorf("that none of %d is left is believed: %v", had, got)
		}
	}
	for had, want := range map[int]bool{2: true, 3: false, 9: false} {
		b := Brake{Bound: time.Minute, Some: true}
		if got := b.Believe(time.Unix(1_000_000, 0), had, 1); got != want {
			t.Errorf("that one of %d is left, which may be the API server's own, is believed: %v", had, got)
		}
	}
	b := Brake{Bound: time.Minute, Some: true}
	if !b.Believe(time.Unix(1_000_000, 0), 9, 2) {
		t.Error("that two of nine are left is not believed")
	}
}
