package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// listing is a layer as text: mode, size or target, name.
func listing(t *testing.T, l *Layer) string {
	t.Helper()
	var b strings.Builder
	for r := tar.NewReader(bytes.NewReader(l.data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%s: owner %d:%d, time %v; want root and zero", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		fmt.Fprintf(&b, "%04o %d %s", h.Mode, h.Size, h.Name)
		if h.Linkname != "" {
			fmt.Fprintf(&b, " -> %s", h.Linkname)
		}
		b.WriteString("\n")
	}
}

func TestLayerKeepsLinksAndOrder(t *testing.T) {
	host := t.TempDir()
	must(t, os.MkdirAll(host+"/usr/bin", 0o755))
	must(t, os.MkdirAll(host+"/etc/alternatives", 0o755))
	must(t, os.WriteFile(host+"/usr/bin/nc.real", []byte("12345"), 0o755))
	must(t, os.Symlink("usr/bin", host+"/bin"))
	must(t, os.Symlink(host+"/etc/alternatives/nc", host+"/usr/bin/nc"))
	must(t, os.Symlink("../../bin/nc.real", host+"/etc/alternatives/nc"))

	var tree Tree
	if got, want := tree.Same(host+"/bin/nc"), host+"/usr/bin/nc.real"; got != want {
		t.Errorf("Same returned %s, want %s", got, want)
	}
	tree.Dir("/tmp", 0o777|fs.ModeSticky)
	tree.File(host+"/bin/hello", 0o644, "hi") // through the link, not beside it
	tree.Copy("/a", host+"/bin/nc")
	tree.Link("/b", "a")
	layer, err := tree.Layer()
	must(t, err)
	want := `0755 5 a
0777 0 b -> a
0755 0 HOST/
0777 0 HOST/bin -> usr/bin
0755 0 HOST/etc/
0755 0 HOST/etc/alternatives/
0777 0 HOST/etc/alternatives/nc -> ../../bin/nc.real
0755 0 HOST/usr/
0755 0 HOST/usr/bin/
0644 2 HOST/usr/bin/hello
0777 0 HOST/usr/bin/nc -> /HOST/etc/alternatives/nc
0755 5 HOST/usr/bin/nc.real
1777 0 tmp/
`
	if got := withoutParents(listing(t, layer), host); got != want {
		t.Errorf("layer holds\n%s\nwant\n%s", got, want)
	}
}

// withoutParents writes HOST for the test's directory and leaves out the directories above it.
func withoutParents(list, host string) string {
	for dir := host; dir != "/"; dir = filepath.Dir(dir) {
		if dir != host {
			for _, mode := range []string{"0755", "1777"} {
				list = strings.Replace(list, mode+" 0 "+dir[1:]+"/\n", "", 1)
			}
			if dir == "/tmp" {
				list += "1777 0 tmp/\n"
			}
		}
	}
	return strings.ReplaceAll(list, host[1:], "HOST")
}

func TestTreeRefuses(t *testing.T) {
	for _, c := range []struct {
		name, want string
		build      func(*Tree)
	}{
		{"a missing file", "no such file", func(t *Tree) { t.Copy("/x", "/does/not/exist") }},
		{"a directory as a file", "not a regular file", func(t *Tree) { t.Copy("/x", "/") }},
		{"two files under one name", "already there", func(t *Tree) { t.File("/x", 0o644, "1"); t.File("/x", 0o644, "2") }},
		{"a file below a file", "is a file", func(t *Tree) { t.File("/x", 0o644, "1"); t.File("/x/y", 0o644, "2") }},
		{"a loop of links", "too many", func(t *Tree) { t.Link("/a", "b"); t.Link("/b", "a"); t.File("/a/x", 0o644, "") }},
		{"the root", "root directory", func(t *Tree) { t.File("/", 0o644, "1") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tree Tree
			c.build(&tree)
			tree.File("/later", 0o644, "does not hide the first error")
			if _, err := tree.Layer(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestRewrite(t *testing.T) {
	var tree Tree
	tree.File("/etc/motd", 0o640, "hello")
	must(t, tree.Rewrite("etc/motd", func(b []byte) ([]byte, error) { return bytes.ToUpper(b), nil }))
	if err := tree.Rewrite("etc", nil); err == nil {
		t.Error("a directory was rewritten")
	}
	layer, err := tree.Layer()
	must(t, err)
	if !bytes.Contains(layer.data, []byte("HELLO")) || !strings.Contains(listing(t, layer), "0640 5 etc/motd") {
		t.Errorf("the layer does not hold the new content with the old mode:\n%s", listing(t, layer))
	}
}

// TestProgramRuns runs dynamic programs with nothing but what Program brought along.
func TestProgramRuns(t *testing.T) {
	testnet.NeedRoot(t, "starts containerd or changes its root directory")
	for program, args := range map[string][]string{"nft": {"--version"}, "curl": {"--version"}, "bash": {"-c", "echo bash"}} {
		t.Run(program, func(t *testing.T) {
			at, err := Find(program)
			must(t, err)
			var tree Tree
			tree.Program(at)
			tree.Program(at) // again is harmless
			layer, err := tree.Layer()
			must(t, err)
			root := t.TempDir()
			unpack := exec.Command("tar", "-x", "-C", root)
			unpack.Stdin = bytes.NewReader(layer.data)
			if out, err := unpack.CombinedOutput(); err != nil {
				t.Fatalf("unpack: %v: %s", err, out)
			}
			cmd := exec.Command(at, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
			cmd.Dir, cmd.Env = "/", []string{}
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), program) {
				t.Errorf("%s %v in its image: %v: %s", at, args, err, out)
			}
		})
	}
}

func TestParseList(t *testing.T) {
	const out = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n" +
		"\tlibx.so => /opt/x/libx.so (0x1)\n\t/lib64/ld-linux.so.2 (0x00007f)\n"
	got, err := parseList(out)
	must(t, err)
	if want := "[{libc.so.6 /lib/libc.so.6} {libx.so /opt/x/libx.so}]"; fmt.Sprint(got) != want {
		t.Errorf("parsed %v, want %s", got, want)
	}
	if _, err := parseList("\tlibgone.so.1 => not found\n"); err == nil || !strings.Contains(err.Error(), "libgone.so.1") {
		t.Errorf("a missing library gives %v, want an error with its name", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
