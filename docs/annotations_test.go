package docs_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/gateway"
)

var update = flag.Bool("update", false, "write the tables of ingress-annotations.md anew")

// TestAnnotations: ingress-annotations.md has each annotation that the gateway knows, with its effect.
func TestAnnotations(t *testing.T) {
	const page, mark = "ingress-annotations.md", "<!-- annotations: written by go test ./docs -run TestAnnotations -update -->\n"
	before, have, ok := strings.Cut(read(t, page), mark)
	if !ok {
		t.Fatalf("%s has no %q", page, mark)
	}
	var want strings.Builder
	for _, part := range []struct {
		fate        gateway.Fate
		title, head string
	}{
		{gateway.AnnotationObeyed, "The same", "effect"},
		{gateway.AnnotationNeedless, "Not needed", "why"},
		{gateway.AnnotationUnsupported, "Not there", "what happens"},
		{gateway.AnnotationClosing, "Not there, and the Ingress answers 500", "why"},
		{gateway.AnnotationRefused, "Refused", "why"},
	} {
		fmt.Fprintf(&want, "\n## %s\n\n| annotation | %s |\n|---|---|\n", part.title, part.head)
		for _, g := range gateway.AnnotationGroups() {
			if g.Fate == part.fate {
				fmt.Fprintf(&want, "| `%s` | %s |\n", strings.ReplaceAll(g.Names, " ", "`, `"), g.Text)
			}
		}
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+mark+want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != want.String() {
		t.Errorf("%s is not what the gateway knows [go test ./docs -run TestAnnotations -update]", page)
	}
}
