package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// twoImages share one layer; the first has two names.
func twoImages(t *testing.T) []Image {
	t.Helper()
	var tree Tree
	tree.File("/etc/hello", 0o644, "hello\n")
	layer, err := tree.Layer()
	must(t, err)
	return []Image{
		{Names: []string{"docker.io/library/one:latest", "ghcr.io/x/y/one:v1.2"}, Layers: []*Layer{layer}},
		{Names: []string{"localhost:5000/two:3"}, Layers: []*Layer{layer}, Config: v1.Config{Cmd: []string{"sh"}}},
	}
}

func TestArchiveIsAnOCILayoutAndADockerArchive(t *testing.T) {
	var a, b bytes.Buffer
	must(t, Write(&a, twoImages(t)...))
	must(t, Write(&b, twoImages(t)...))
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the same images gave different archives")
	}
	files := make(map[string][]byte)
	for r := tar.NewReader(&a); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if files[h.Name] != nil {
			t.Errorf("%s is in the archive twice", h.Name)
		}
		files[h.Name], err = io.ReadAll(r)
		must(t, err)
		if sum := hash(files[h.Name]); strings.HasPrefix(h.Name, "blobs/") && h.Name != "blobs/sha256/"+sum.Hex {
			t.Errorf("%s has the digest %s", h.Name, sum)
		}
	}
	// One layer, two configurations, two manifests, and three documents.
	if len(files) != 8 {
		t.Errorf("%d files, want 8", len(files))
	}
	var index v1.IndexManifest
	must(t, json.Unmarshal(files["index.json"], &index))
	var names []string
	for _, d := range index.Manifests {
		names = append(names, d.Annotations[AnnotationName])
		var m v1.Manifest
		must(t, json.Unmarshal(blobOf(t, files, d), &m))
		var c v1.ConfigFile
		must(t, json.Unmarshal(blobOf(t, files, m.Config), &c))
		blobOf(t, files, m.Layers[0])
		if len(c.RootFS.DiffIDs) != 1 || c.RootFS.DiffIDs[0] != m.Layers[0].Digest {
			t.Errorf("%v: diff IDs %v do not match the layer %v", names, c.RootFS.DiffIDs, m.Layers[0].Digest)
		}
	}
	if want := "[docker.io/library/one:latest ghcr.io/x/y/one:v1.2 localhost:5000/two:3]"; fmt.Sprint(names) != want {
		t.Errorf("index names %v, want %s", names, want)
	}
	var docker []dockerManifest
	must(t, json.Unmarshal(files["manifest.json"], &docker))
	for _, m := range docker {
		if files[m.Config] == nil || files[m.Layers[0]] == nil {
			t.Errorf("manifest.json points to nothing: %+v", m)
		}
	}
}

func blobOf(t *testing.T, files map[string][]byte, d v1.Descriptor) []byte {
	t.Helper()
	data := files["blobs/sha256/"+d.Digest.Hex]
	if int64(len(data)) != d.Size || d.Size == 0 {
		t.Fatalf("blob %s has %d bytes, the descriptor says %d", d.Digest, len(data), d.Size)
	}
	return data
}

func TestWriteRefusesIncompleteNames(t *testing.T) {
	layer := twoImages(t)[0].Layers
	for _, name := range []string{"busybox", "busybox:latest", "docker.io/busybox", "library/busybox:latest", "Docker.io/x:y", "docker.io/x:"} {
		err := Write(io.Discard, Image{Names: []string{name}, Layers: layer})
		if err == nil || !strings.Contains(err.Error(), "not complete") {
			t.Errorf("name %q: error %v, want advice", name, err)
		}
	}
	if err := Write(io.Discard, Image{Layers: layer}); err == nil {
		t.Error("an image without a name was written")
	}
}

func TestWriteFileLeavesNothingBehindOnError(t *testing.T) {
	dir := t.TempDir()
	if err := WriteFile(filepath.Join(dir, "x.tar"), Image{}); err == nil {
		t.Fatal("no error")
	}
	left, err := os.ReadDir(dir)
	must(t, err)
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestContainerdImport gives an archive to a containerd of its own, as the lab does.
func TestContainerdImport(t *testing.T) {
	testnet.NeedRoot(t, "starts containerd or changes its root directory")
	socket := startContainerd(t)
	file := filepath.Join(t.TempDir(), "images.tar")
	must(t, WriteFile(file, twoImages(t)...))
	ctr(t, socket, "images", "import", file)
	want := "docker.io/library/one:latest\nghcr.io/x/y/one:v1.2\nlocalhost:5000/two:3\n"
	if got := ctr(t, socket, "images", "list", "-q"); got != want {
		t.Errorf("containerd has\n%swant\n%s", got, want)
	}
	readHello(t, socket, "ghcr.io/x/y/one:v1.2", "hello\n")
}

// TestContainerdImportsIndex: containerd takes the image of its own architecture from an index, compressed or not.
func TestContainerdImportsIndex(t *testing.T) {
	testnet.NeedRoot(t, "starts containerd or changes its root directory")
	socket := startContainerd(t)
	file := filepath.Join(t.TempDir(), "index.tar")
	_, err := WriteIndexFile(file, twoArchitectures(t))
	must(t, err)
	ctr(t, socket, "images", "import", file)
	readHello(t, socket, "ghcr.io/x/y/one:v1", runtime.GOARCH)
}

// ctr runs containerd's client.
func ctr(t *testing.T, socket string, args ...string) string {
	t.Helper()
	out, err := exec.Command("ctr", append([]string{"-a", socket, "-n", "k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %v: %v: %s", args, err, out)
	}
	return string(out)
}

// readHello compares the file of a mounted image.
func readHello(t *testing.T, socket, name, want string) {
	t.Helper()
	mount := t.TempDir()
	ctr(t, socket, "images", "mount", name, mount)
	t.Cleanup(func() { syscall.Unmount(mount, syscall.MNT_DETACH) })
	if got, err := os.ReadFile(mount + "/etc/hello"); string(got) != want {
		t.Errorf("the image's file holds %q (%v), want %q", got, err, want)
	}
}

// startContainerd runs a containerd with everything in a temporary directory until the test ends.
func startContainerd(t *testing.T) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "fwimg") // t.TempDir is too long for a socket's path
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := fmt.Sprintf("version = 2\nroot = \"%[1]s/root\"\nstate = \"%[1]s/state\"\n"+
		"disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = \"%[1]s/sock\"\n[ttrpc]\naddress = \"%[1]s/ttrpc\"\n", dir)
	must(t, os.WriteFile(dir+"/config.toml", []byte(config), 0o600))
	var log bytes.Buffer
	cmd := exec.Command("containerd", "--config", dir+"/config.toml")
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if exec.Command("ctr", "-a", dir+"/sock", "--connect-timeout", "1s", "version").Run() == nil {
			return dir + "/sock"
		}
		if time.Now().After(end) {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("containerd does not answer (is it installed? `make deps`): %s", log.String())
		}
	}
}
