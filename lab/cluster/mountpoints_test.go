package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestLeaveTogether: labs that go down at the same time pass their directories to a lab that stays. The last lab
// removes the directories. No lab overwrites another lab's state.
func TestLeaveTogether(t *testing.T) {
	root := t.TempDir()
	var labs []Lab
	for i := range 8 {
		l := Lab{Name: fmt.Sprintf("leave-%d-%d", os.Getpid(), i)}
		dir := filepath.Join(root, l.Name)
		for _, d := range []string{dir, l.Dir()} {
			if err := os.Mkdir(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { os.RemoveAll(l.Dir()) })
		for n := range 300 { // the removal takes a while
			if err := os.MkdirAll(l.path(fmt.Sprintf("nodes/%d", n)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.save(&State{Started: time.Now(), Dirs: []string{dir}}); err != nil {
			t.Fatal(err)
		}
		labs = append(labs, l)
	}
	var together sync.WaitGroup
	for _, l := range labs {
		together.Go(func() {
			if err := l.remove(); err != nil {
				t.Errorf("lab %s: %v", l, err)
			}
		})
	}
	together.Wait()
	// A lab of another program may stay, and removes the directories when it goes down.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left, err := filepath.Glob(root + "/*")
		if err != nil {
			t.Fatal(err)
		}
		kept := others(t)
		left = slices.DeleteFunc(left, func(dir string) bool { return strings.Contains(kept, dir) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left are %v", left)
		}
	}
}

// others returns the directories that all labs of the machine have taken over.
func others(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/var/lib/fairway-lab*/" + inheritedFile + "*")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, _ := os.ReadFile(file) // that lab may also be going down
		all.Write(text)
	}
	return all.String()
}
