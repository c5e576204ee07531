package tenants

import (
	"bytes"
	"strings"
	"testing"
)

// TestSets: each set is written whole, twice the same, and no object of it is larger than the API server takes.
func TestSets(t *testing.T) {
	const most = 3 << 20 // bytes of a request
	ci := 0
	for _, s := range All {
		var text, again strings.Builder
		if err := s.Write(&text); err != nil {
			t.Fatal(err)
		}
		if err := s.Write(&again); err != nil || again.String() != text.String() {
			t.Errorf("%s: a second time it is another text: %v", s.Name, err)
		}
		objects := 0
		for o := range bytes.SplitSeq([]byte(text.String()), []byte("---\n")) {
			if len(o) > most {
				t.Errorf("%s has an object of %d bytes, at most %d", s.Name, len(o), most)
			}
			objects++
		}
		if objects < 2 || !strings.HasSuffix(s.Must, ".") { // the first is empty
			t.Errorf("%s has %d objects, and must %q", s.Name, objects, s.Must)
		}
		if s.InCI {
			ci++
		}
	}
	if len(All) < 10 || ci < 3 {
		t.Errorf("%d sets, %d in CI", len(All), ci)
	}
}
