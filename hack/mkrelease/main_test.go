package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// inputs makes a directory as `make release` does, for this machine's architecture: a small program as ours, and this
// machine's files as Debian's.
func inputs(t *testing.T, perm os.FileMode) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fairway", "fairway-cni"} {
		program := filepath.Join(dir, runtime.GOARCH, name)
		if out, err := exec.Command("go", "build", "-trimpath", "-o", program, source).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := os.Chmod(program, perm); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/", filepath.Join(dir, "debian-"+runtime.GOARCH)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTwice: the same inputs give the same files, which sha256sum finds right.
func TestTwice(t *testing.T) {
	var sums [2]string
	for i, perm := range []os.FileMode{0o755, 0o700} {
		r := release{dir: t.TempDir(), inputs: inputs(t, perm), version: "v0.1.0-rc.1", sources: "../..", architectures: []string{runtime.GOARCH}}
		if err := r.write(); err != nil {
			t.Fatal(err)
		}
		check := exec.Command("sha256sum", "--strict", "--check", "SHA256SUMS")
		check.Dir = r.dir
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("sha256sum: %v: %s", err, out)
		}
		text, err := os.ReadFile(filepath.Join(r.dir, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = string(text)
	}
	if sums[0] != sums[1] {
		t.Errorf("two runs differ:\n%s\n%s", sums[0], sums[1])
	}
	var names []string
	for line := range strings.Lines(sums[0]) {
		names = append(names, strings.ReplaceAll(strings.Fields(line)[1], runtime.GOARCH, "ARCH"))
	}
	slices.Sort(names)
	want := []string{
		"NOTES.md", "fairway-0.1.0-rc.1.tgz", "fairway-image-v0.1.0-rc.1-linux-ARCH.spdx.json", "fairway-image-v0.1.0-rc.1.tar",
		"fairway-v0.1.0-rc.1-linux-ARCH.spdx.json", "fairway-v0.1.0-rc.1-linux-ARCH.tar.gz",
	}
	if !slices.Equal(names, want) {
		t.Errorf("the release has %q, want %q", names, want)
	}
}

// TestWrongArchitecture: binaries of another architecture never get into an image.
func TestWrongArchitecture(t *testing.T) {
	in := inputs(t, 0o755)
	if err := os.Rename(filepath.Join(in, runtime.GOARCH), filepath.Join(in, "riscv64")); err != nil {
		t.Fatal(err)
	}
	r := release{dir: t.TempDir(), inputs: in, version: "v0.1.0-rc.1", sources: "../..", architectures: []string{"riscv64"}}
	if err := r.write(); err == nil || !strings.Contains(err.Error(), "are for "+runtime.GOARCH) {
		t.Errorf("error %v, want one with the architecture", err)
	}
}

func TestSection(t *testing.T) {
	const changelog = "# Changelog\n\n## v0.2.0 (unreleased)\n\n- new: [x](docs/x.md#y), [z](https://z)\n\n## v0.1.0\n\nThe first.\n"
	for _, c := range []struct{ version, want, err string }{
		{"v0.1.0", "The first.", ""},
		{"v0.2.0-rc.1", "- new: [x](docs/x.md#y), [z](https://z)", ""},
		{"v0.2.0", "", "unreleased"},
		{"v0.2", "", "no section"},
		{"v0.3.0", "", "no section"},
	} {
		got, err := section(changelog, c.version)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v, want %q, %q", c.version, got, err, c.want, c.err)
		}
	}
	got := notes("- new: [x](docs/x.md#y), [z](https://z)", "v0.2.0", "ghcr.io/x:v0.2.0", "sha256:1")
	for _, want := range []string{"[x](https://github.com/fairway-net/fairway/blob/v0.2.0/docs/x.md#y)", "[z](https://z)", "    sha256:1\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the notes lack %q:\n%s", want, got)
		}
	}
}
