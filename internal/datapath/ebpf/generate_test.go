package ebpf

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// TestSources: the committed objects were made from the C files of this tree.
func TestSources(t *testing.T) {
	h := sha256.New()
	for _, name := range []string{"bpf/kernel.h", "bpf/eject.h", "bpf/connect.c"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		h.Write(text)
	}
	noted, err := os.ReadFile("sources.sha256")
	if err != nil {
		t.Fatal(err)
	}
	if want, _, _ := strings.Cut(string(noted), " "); hex.EncodeToString(h.Sum(nil)) != want {
		t.Error("the objects are older than the C files [make generate]")
	}
}
