package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestReleaseProgram: most of the program's pages are given back, and it goes on: each function that
// runs afterwards is mapped again.
func TestReleaseProgram(t *testing.T) {
	if err := exec.Command("true").Run(); err != nil { // uses some of it
		t.Fatal(err)
	}
	before := resident(t)
	if err := ReleaseProgram(); err != nil {
		t.Fatal(err)
	}
	if after := resident(t); after*4 > before*3 {
		t.Errorf("of %d kB of the program %d kB are mapped after they were released", before, after)
	}
	if err := exec.Command("true").Run(); err != nil {
		t.Errorf("the program does not go on: %v", err)
	}
}

// resident returns how much of the program's file is mapped and in memory, in kB.
func resident(t *testing.T) (kb int) {
	t.Helper()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	ours := false
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) >= 5 && !strings.HasSuffix(f[0], ":"):
			ours = f[len(f)-1] == self && f[1] != "rw-p"
		case ours && f[0] == "Rss:":
			n, _ := strconv.Atoi(f[1])
			kb += n
		}
	}
	return kb
}

// TestReleasable: only what the file has again is released: nothing that may be written, nothing that
// was written before it became read-only, and nothing of another file.
func TestReleasable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "smaps"))
	if err != nil {
		t.Fatal(err)
	}
	want := []mapping{{0x400000, 0x2608000}, {0x2608000, 0x4d53000}}
	if got := releasable(text, "/usr/bin/fairway"); !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}
