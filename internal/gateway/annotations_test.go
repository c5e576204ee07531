package gateway

import (
	"strings"
	"testing"
)

// TestAnnotationGroups: each annotation is in one group, and a reader reads only what is obeyed.
func TestAnnotationGroups(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range AnnotationGroups() {
		if g.Text == "" {
			t.Errorf("%s: what does it do?", g.Names)
		}
		for name := range strings.FieldsSeq(g.Names) {
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
	}
	for name := range annotationReaders {
		if g := knownAnnotations[name]; g == nil || g.Fate != AnnotationObeyed {
			t.Errorf("%s is read, but is not said to be obeyed", name)
		}
	}
}
