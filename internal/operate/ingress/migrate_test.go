package ingress

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/api"
)

var update = flag.Bool("update", false, "write the expected texts anew")

// TestMigrate translates the Ingresses of each file of testdata/migrate.
func TestMigrate(t *testing.T) {
	files, err := filepath.Glob("testdata/migrate/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in := readInput(t, archive.Files[0].Data)
			var out bytes.Buffer
			if err := Migrate(in).Print(&out); err != nil {
				t.Fatal(err)
			}
			if *update {
				archive.Files = append(archive.Files[:1], txtar.File{Name: "want.yaml", Data: out.Bytes()})
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(archive.Files) != 2 || string(archive.Files[1].Data) != out.String() {
				t.Errorf("-update writes it anew; got:\n%s", &out)
			}
		})
	}
}

// readInput reads Ingresses, Services and ConfigMaps.
func readInput(t *testing.T, text []byte) Input {
	t.Helper()
	in, err := Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	in.Gateway, in.Class = api.Name{Namespace: "gateways", Name: "ingress"}, "fairway"
	return in
}
