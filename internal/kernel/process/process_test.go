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

// TestReleaseProgram: most pages of the program are unmapped, and the program goes on.
func TestReleaseProgram(t *testing.T) {
	if err := exec.Command("true").Run(); err != nil { // maps some more pages
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

// resident returns the size in kB of the program's pages that are mapped and in memory.
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

// TestReleasable: a mapping is released only if the file has the same bytes. It is not writable, no page was written
// before it became read-only, and it belongs to the program's file.
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
