package path_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/path"
)

// TestSVG draws the first question of two files.
func TestSVG(t *testing.T) {
	for _, name := range []string{"00-delivered", "12-internal-local"} {
		a, err := txtar.ParseFile("testdata/" + name + ".txtar")
		if err != nil {
			t.Fatal(err)
		}
		var question, objects string
		for _, f := range a.Files {
			if f.Name == "objects.yaml" {
				objects = string(f.Data)
			} else if q, ok := strings.CutPrefix(f.Name, "ask "); ok && question == "" {
				question = q
			}
		}
		got := drawn(t, ask(t, cluster(t, string(a.Comment), objects), question))
		file := "testdata/" + name + ".svg"
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || got != string(want) {
			t.Errorf("%s: %v\n%s", name, err, got)
		}
	}
}

// TestSVGText: texts of the cluster's objects stay text.
func TestSVGText(t *testing.T) {
	const hostile = `</text><script>alert("1")</script>&\x00`
	p := &path.Path{
		From: path.End{Kind: "Pod", NS: "a", Name: hostile}, To: path.Target{Asked: hostile},
		Verdict:  path.Verdict{Predicted: path.Dropped},
		Steps:    []path.Step{{Kind: path.KindFilter, Node: hostile, State: path.Dropped, Text: hostile, Detail: hostile}},
		Findings: []path.Finding{{Level: path.Fatal, Text: hostile, Advice: hostile}},
	}
	if s := drawn(t, p); strings.Contains(s, "<script") {
		t.Errorf("%s", s)
	}
}

// drawn returns a path's picture, which is well-formed XML.
func drawn(t *testing.T, p *path.Path) string {
	t.Helper()
	var out bytes.Buffer
	if err := p.WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(out.Bytes())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
	}
	return out.String()
}
