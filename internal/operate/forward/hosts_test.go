package forward

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEditHosts: only lines between marks of this process and of dead processes change.
func TestEditHosts(t *testing.T) {
	living := func(pid int) bool { return pid == 7 }
	for _, tc := range []struct{ name, old, lines, want string }{
		{"first", "127.0.0.1 localhost\n", "127.64.0.1\tweb", "127.0.0.1 localhost\n# fairway forward 5\n127.64.0.1\tweb\n# end of fairway forward 5\n"},
		{"no line end", "127.0.0.1 localhost", "127.64.0.1\tweb", "127.0.0.1 localhost\n# fairway forward 5\n127.64.0.1\tweb\n# end of fairway forward 5\n"},
		{"again", "a\n# fairway forward 5\nold\n# end of fairway forward 5\nb\n", "new", "a\nb\n# fairway forward 5\nnew\n# end of fairway forward 5\n"},
		{"end", "a\n# fairway forward 5\nold\n# end of fairway forward 5\nb\n", "", "a\nb\n"},
		{"dead", "a\n# fairway forward 6\nold\n# end of fairway forward 6\nb\n", "", "a\nb\n"},
		{"another one", "a\n# fairway forward 7\nold\n# end of fairway forward 7\n", "new", "a\n# fairway forward 7\nold\n# end of fairway forward 7\n# fairway forward 5\nnew\n# end of fairway forward 5\n"},
		{"no end mark", "a\n# fairway forward 6\nold\n# fairway forward 7\nb\n# end of fairway forward 7\n", "", "a\n# fairway forward 7\nb\n# end of fairway forward 7\n"},
		{"only an end mark", "a\n# end of fairway forward 6\nb\n", "", "a\nb\n"},
		{"another comment", "# fairway forward is great\na\n", "", "# fairway forward is great\na\n"},
	} {
		var lines []string
		if tc.lines != "" {
			lines = strings.Split(tc.lines, "\n")
		}
		if got := string(editHosts([]byte(tc.old), 5, lines, living)); got != tc.want {
			t.Errorf("%s:\n%s\nnot\n%s", tc.name, got, tc.want)
		}
	}
}

// FuzzEditHosts: what stands outside of marks stays, and a block that is written is removed again.
func FuzzEditHosts(f *testing.F) {
	f.Add("127.0.0.1 localhost\n# fairway forward 5\nx\n", "127.64.0.1 web")
	f.Add("# end of fairway forward 9\n# fairway forward 9\n", "a")
	dead := func(int) bool { return false }
	f.Fuzz(func(t *testing.T, old, line string) {
		if line == "" || strings.ContainsAny(line, "\n\r#") {
			return
		}
		clean := string(editHosts([]byte(old), 5, nil, dead))
		if again := string(editHosts([]byte(clean), 5, nil, dead)); again != clean {
			t.Errorf("%q is not clean: %q", clean, again)
		}
		with := string(editHosts([]byte(clean), 5, []string{line}, dead))
		if !strings.HasPrefix(with, clean) || !strings.Contains(with, line) {
			t.Errorf("%q became %q", clean, with)
		}
		if removed := string(editHosts([]byte(with), 5, nil, dead)); strings.TrimSuffix(removed, "\n") != strings.TrimSuffix(clean, "\n") {
			t.Errorf("%q became %q", clean, removed)
		}
	})
}

// TestWriteHosts: a process that was killed leaves lines, and the next one removes them. The file keeps its mode and stays
// the same file.
func TestWriteHosts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	const before = "127.0.0.1 localhost\n"
	if err := os.WriteFile(path, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if err := WriteHosts(path, ended.Process.Pid, []string{"127.64.0.1\told"}); err != nil {
		t.Fatal(err)
	}
	was, _ := os.Stat(path)
	if err := WriteHosts(path, os.Getpid(), []string{"127.64.0.1\tnew"}); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(path)
	if is, _ := os.Stat(path); strings.Contains(string(text), "old") || !strings.Contains(string(text), "127.64.0.1\tnew\n") || !os.SameFile(was, is) {
		t.Errorf("the file is\n%s", text)
	}
	if err := WriteHosts(path, os.Getpid(), nil); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(path); string(text) != before {
		t.Errorf("the file was %q, and is %q", before, text)
	}
	if err := WriteHosts(filepath.Join(t.TempDir(), "none"), 1, nil); err == nil || !strings.Contains(err.Error(), "--ports") {
		t.Errorf("a file that cannot be written: %v", err)
	}
}
