package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/image"
	"github.com/fairway-net/fairway/lab/apiclient"
	"github.com/fairway-net/fairway/lab/node"
)

// TestFromContainerd loads an image by its name from a containerd of this machine, with the real ctr and containerd. A
// lab can load the exported archive.
func TestFromContainerd(t *testing.T) {
	dir, err := os.MkdirTemp("", "find-") // short, because of the length limit of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var tree image.Tree
	tree.File("/hello", 0o644, "from containerd")
	layer, err := tree.Layer()
	if err == nil {
		err = image.WriteFile(filepath.Join(dir, "host.tar"), image.Image{Names: []string{"docker.io/library/fairway-lab-test:latest"}, Layers: []*image.Layer{layer}})
	}
	if err != nil {
		t.Fatal(err)
	}
	host, nodes := node.Store{Dir: filepath.Join(dir, "host")}, node.Store{Dir: filepath.Join(dir, "nodes")}
	serveStore(t, host)
	serveStore(t, nodes)
	if err := host.Import(t.Context(), []string{filepath.Join(dir, "host.tar")}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CONTAINERD_ADDRESS", filepath.Join(host.Dir, "s")) // ctr without --address connects to this socket
	archive, err := archiveOf(t.Context(), "fairway-lab-test", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if names, err := imageNames(archive); err != nil || !slices.Equal(names, []string{"fairway-lab-test:latest"}) && !slices.Equal(names, []string{"docker.io/library/fairway-lab-test:latest"}) {
		t.Errorf("the archive has %q, %v", names, err)
	}
	if err := nodes.Import(t.Context(), []string{archive}); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "ctr", "--address", filepath.Join(nodes.Dir, "s"), "--namespace", "k8s.io", "images", "ls", "-q").Output()
	if err != nil || strings.TrimSpace(string(out)) != "docker.io/library/fairway-lab-test:latest" {
		t.Errorf("a node has %q, %v", out, err)
	}
	if _, err := archiveOf(t.Context(), "not-there", t.TempDir()); err == nil || !strings.Contains(err.Error(), "ctr --namespace default, ctr --namespace k8s.io, ctr --namespace moby") {
		t.Errorf("an image that is not there: %v", err)
	}
}

// serveStore runs the store's containerd until the test ends.
func serveStore(t *testing.T, s node.Store) {
	t.Helper()
	cmd, err := s.Command()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := apiclient.Poll(ctx, 20*time.Millisecond, s.Serves); err != nil {
		t.Fatal(err)
	}
}
