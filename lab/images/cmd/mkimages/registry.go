package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/fairway-net/fairway/internal/image"
)

// registryDir is the directory that agnhost's fake registry serves.
const registryDir = "/var/registry"

// serveImage adds an image to the fake registry in t, as NAME:TAG. Its layout is that of upstream's fakeregistryserver.
// A file for the tag holds the manifest's digest. Manifests and blobs are files ALGORITHM/XX/DIGEST/data.
func serveImage(t *image.Tree, name, tag string, img image.Image) error {
	var buf bytes.Buffer
	if err := image.Write(&buf, img); err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	dir := path.Join(registryDir, name)
	t.File(path.Join(dir, "manifests", tag), 0o644, digest.String())
	for r := tar.NewReader(&buf); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read image %v: %w", img.Names, err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("read image %v: %w", img.Names, err)
		}
		hex, ok := strings.CutPrefix(h.Name, "blobs/sha256/")
		if !ok {
			continue
		}
		kind := "blobs"
		if hex == digest.Hex {
			kind = "manifests"
		}
		t.File(path.Join(dir, kind, "sha256", hex[:2], hex, "data"), 0o644, string(data))
	}
}
