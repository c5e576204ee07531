package election

import (
	"fmt"
	"slices"
	"testing"
)

// TestNext: the lists that follow each other until the list stays.
func TestNext(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, speaking, silent []string
		from                    []string
		want                    []string // the list of each step
	}{
		"one node":             {[]string{"a"}, []string{"a"}, nil, []string{"a"}, nil},
		"two nodes":            {[]string{"a", "b"}, []string{"a", "b"}, nil, []string{"a"}, []string{"[a b]", "[@lease a b]"}},
		"a third comes":        {[]string{"a", "b", "c"}, []string{"a", "b", "c"}, nil, []string{"@lease", "a", "b"}, []string{"[a b]", "[a b c]"}},
		"four have three":      {[]string{"a", "b", "c", "d"}, []string{"a", "b", "c", "d"}, nil, []string{"a"}, []string{"[a b]", "[a b c]"}},
		"a node says nothing":  {[]string{"a", "b", "c"}, []string{"a", "b"}, nil, []string{"a", "b", "c"}, nil},
		"for long":             {[]string{"a", "b", "c"}, []string{"a", "b"}, []string{"c"}, []string{"a", "b", "c"}, nil},
		"another has its seat": {[]string{"a", "b", "c", "d"}, []string{"a", "b", "d"}, []string{"c"}, []string{"a", "b", "c"}, []string{"[a b]", "[a b d]"}},
		"a node is gone":       {[]string{"a", "b"}, []string{"a", "b"}, nil, []string{"a", "b", "c"}, []string{"[a b]", "[@lease a b]"}},
		"both others are gone": {[]string{"a"}, []string{"a"}, nil, []string{"@lease", "a", "b"}, []string{"[@lease a]", "[a]"}},
		"many":                 {letters(20), letters(20), nil, letters(6), []string{fmt.Sprint(letters(7))}},
		"no speaker there":     {[]string{"a", "b", "c"}, []string{"a", "c"}, nil, []string{"a"}, []string{"[a c]", "[@lease a c]"}},
	} {
		r := Roll{Nodes: c.nodes, Speaking: setOf(c.speaking), Silent: setOf(c.silent)}
		v := Voters{Epoch: 7, Names: c.from}
		var got []string
		for len(got) < 10 {
			next, changed := v.Next(r)
			if !changed {
				break
			}
			if next.Epoch != v.Epoch+1 || differences(v.Names, next.Names) != 1 || len(next.Names) == 0 {
				t.Errorf("%s: %v follows %v", name, next, v)
			}
			v = next
			got = append(got, fmt.Sprint(v.Names))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestFirstList: the voters of the first list.
func TestFirstList(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, speaking []string
		listed          bool
		want            string
	}{
		"one node":                    {[]string{"a"}, []string{"a"}, false, "[a]"},
		"two":                         {[]string{"a", "b"}, []string{"a", "b"}, false, "[@lease a b]"},
		"one of three is not there":   {[]string{"a", "b", "c"}, []string{"a", "c"}, false, "[@lease a c]"},
		"three":                       {[]string{"a", "b", "c"}, []string{"a", "b", "c"}, false, "[a b c]"},
		"four":                        {letters(4), letters(4), false, "[a b c]"},
		"many":                        {letters(20), letters(20), false, "[a b c d e f g]"},
		"another one knows a list":    {[]string{"a", "b"}, []string{"a", "b"}, true, "[]"},
		"a speaker on no node of API": {nil, []string{"a"}, false, "[]"},
	} {
		v, ok := First(Roll{Nodes: c.nodes, Speaking: setOf(c.speaking), Listed: c.listed})
		if got := fmt.Sprint(v.Names); got != c.want || ok != (v.Epoch == 1) || ok != (got != "[]") {
			t.Errorf("%s: %v %v, want %s", name, v, ok, c.want)
		}
		if _, more := v.Next(Roll{Nodes: c.nodes, Speaking: setOf(c.speaking)}); ok && more {
			t.Errorf("%s: %v has a successor at once", name, v)
		}
	}
}

func letters(n int) (all []string) {
	for i := range n {
		all = append(all, string(rune('a'+i)))
	}
	return all
}

func setOf(names []string) map[string]bool {
	out := map[string]bool{}
	for _, n := range names {
		out[n] = true
	}
	return out
}

func differences(a, b []string) (n int) {
	for _, x := range a {
		if !slices.Contains(b, x) {
			n++
		}
	}
	for _, x := range b {
		if !slices.Contains(a, x) {
			n++
		}
	}
	return n
}
