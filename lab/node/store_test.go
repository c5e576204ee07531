package node

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/image"
)

// layer returns a layer with one file and a link to it.
func layer(t *testing.T, name, text string) *image.Layer {
	t.Helper()
	var tree image.Tree
	tree.File("/dir/"+name, 0o750, text)
	tree.Link("/dir/link", name)
	l, err := tree.Layer()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// rewrite copies an archive without some files, and changes its bytes.
func rewrite(t *testing.T, from, to string, without []string, change func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		text, readErr := io.ReadAll(r)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(without, h.Name) {
			continue
		}
		text = change(text)
		h.Size = int64(len(text))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(to, out.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestStore: containerd finds the store's unpacked images complete, from Fairway's archives and from other archives. A
// node that Fill filled shares the store's files. Import refuses a damaged archive.
func TestStore(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: containerd mounts what it unpacks")
	}
	dir, err := os.MkdirTemp("", "store-") // short, because of the length limit of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ours, theirs, damaged := filepath.Join(dir, "ours.tar"), filepath.Join(dir, "theirs.tar"), filepath.Join(dir, "damaged.tar")
	below := layer(t, "hello", "below")
	write := func(file string, images ...image.Image) {
		if err := image.WriteFile(file, images...); err != nil {
			t.Fatal(err)
		}
	}
	write(ours, image.Image{Names: []string{"example.com/one:1", "example.com/one:2"}, Layers: []*image.Layer{below}},
		image.Image{Names: []string{"example.com/two:1"}, Layers: []*image.Layer{below, layer(t, "hello", "above")}})
	write(theirs, image.Image{Names: []string{"example.com/three:1"}, Layers: []*image.Layer{below, layer(t, "other", "theirs")}})
	rewrite(t, theirs, theirs, []string{"oci-layout", "index.json"}, func(b []byte) []byte { return b }) // the format of docker save
	write(damaged, image.Image{Names: []string{"example.com/four:1"}, Layers: []*image.Layer{layer(t, "hello", "intact")}})
	rewrite(t, damaged, damaged, nil, func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("intact"), []byte("broken")) })

	s := Store{Dir: filepath.Join(dir, "s")}
	serve(t, s)
	if err := s.Import(t.Context(), []string{damaged}); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("a damaged archive: %v", err)
	}
	if err := s.Import(t.Context(), []string{ours, theirs}); err != nil {
		t.Fatal(err)
	}
	if missing := s.Missing([]string{ours, theirs, damaged}); !slices.Equal(missing, []string{damaged}) {
		t.Errorf("missing: %v", missing)
	}
	out, err := exec.CommandContext(t.Context(), "ctr", "--address", s.path("s"), "--namespace", "k8s.io", "images", "check").CombinedOutput()
	if err != nil {
		t.Fatalf("ctr images check: %v: %s", err, out)
	}
	for _, name := range []string{"one:1", "one:2", "two:1", "three:1"} {
		line := ""
		for l := range strings.Lines(string(out)) {
			if strings.HasPrefix(l, "example.com/"+name+" ") {
				line = l
			}
		}
		if !strings.Contains(line, "complete") || !strings.HasSuffix(strings.TrimSpace(line), "true") {
			t.Errorf("%s is not complete and unpacked: %q in\n%s", name, line, out)
		}
	}
	c := Config{Name: "node-1", Dir: filepath.Join(dir, "node")}
	if err := c.Fill(s); err != nil {
		t.Fatal(err)
	}
	texts := ""
	files, _ := filepath.Glob(c.path("fs/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/dir/*"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		info, statErr := os.Lstat(file)
		if err := errors.Join(err, statErr); err != nil {
			t.Fatal(err)
		}
		texts += filepath.Base(file) + " " + info.Mode().String() + " " + string(text) + "\n"
	}
	for _, want := range []string{"hello -rwxr-x--- below\n", "hello -rwxr-x--- above\n", "other -rwxr-x--- theirs\n", "link Lrwxrwxrwx theirs\n"} {
		if strings.Count(texts, want) != 1 {
			t.Errorf("%q is not there once:\n%s", want, texts)
		}
	}
}

// serve runs the store's containerd until the test ends.
func serve(t *testing.T, s Store) {
	t.Helper()
	cmd, err := s.Command()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("containerd said\n%s", &log)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for s.Serves(ctx) != nil {
		select {
		case <-ctx.Done():
			t.Fatal("containerd does not serve")
		case <-time.After(20 * time.Millisecond):
		}
	}
}
