package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// twoArchitectures is an index whose images have a compressed layer each.
func twoArchitectures(t *testing.T) Index {
	t.Helper()
	x := Index{Name: "ghcr.io/x/y/one:v1"}
	for _, arch := range []string{"amd64", "arm64"} {
		var tree Tree
		tree.File("/etc/hello", 0o644, arch)
		layer, err := tree.Layer()
		must(t, err)
		layer, err = layer.Compress()
		must(t, err)
		x.Images = append(x.Images, Image{Architecture: arch, Layers: []*Layer{layer}})
	}
	return x
}

// TestIndex follows the archive from index.json to each architecture's configuration and layer.
func TestIndex(t *testing.T) {
	file := filepath.Join(t.TempDir(), "index.tar")
	digest, err := WriteIndexFile(file, twoArchitectures(t))
	must(t, err)
	files := archived(t, file)
	var top, index v1.IndexManifest
	must(t, json.Unmarshal(files["index.json"], &top))
	if d := top.Manifests[0]; len(top.Manifests) != 1 || d.Digest != digest || d.MediaType != types.OCIImageIndex {
		t.Fatalf("index.json has %+v, want the index %s", top.Manifests, digest)
	}
	must(t, json.Unmarshal(blobOf(t, files, top.Manifests[0]), &index))
	for i, arch := range []string{"amd64", "arm64"} {
		if p := index.Manifests[i].Platform; p.OS != "linux" || p.Architecture != arch {
			t.Errorf("image %d is for %s, want %s", i, p, arch)
		}
		var m v1.Manifest
		must(t, json.Unmarshal(blobOf(t, files, index.Manifests[i]), &m))
		var c v1.ConfigFile
		must(t, json.Unmarshal(blobOf(t, files, m.Config), &c))
		r, err := gzip.NewReader(bytes.NewReader(blobOf(t, files, m.Layers[0])))
		must(t, err)
		plain, err := io.ReadAll(r)
		must(t, err)
		if c.Architecture != arch || c.RootFS.DiffIDs[0] != hash(plain) || m.Layers[0].MediaType != types.OCILayer {
			t.Errorf("%s: configuration %+v, layer %+v", arch, c, m.Layers[0])
		}
	}
}

// archived returns the files of an archive, and checks that each blob has the digest that its name says.
func archived(t *testing.T, file string) map[string][]byte {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, err)
		if files[h.Name] != nil {
			t.Errorf("%s is in the archive twice", h.Name)
		}
		files[h.Name], err = io.ReadAll(r)
		must(t, err)
		if dir, name := filepath.Split(h.Name); dir == "blobs/sha256/" && name != hash(files[h.Name]).Hex {
			t.Errorf("%s has the digest %s", h.Name, hash(files[h.Name]))
		}
	}
}
