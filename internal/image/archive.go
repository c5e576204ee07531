package image

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// AnnotationName is the annotation with an image's full name in index.json. containerd stores the image under that name.
const AnnotationName = "io.containerd.image.name"

// dockerManifest is one entry of manifest.json, the index of a docker-archive.
type dockerManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// WriteFile writes an archive. A reader never sees half of it.
func WriteFile(file string, images ...Image) error {
	return whole(file, func(w io.Writer) error { return Write(w, images...) })
}

// whole makes a file of what write writes, or no file.
func whole(file string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".image-*")
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	defer os.Remove(tmp.Name()) // after the rename there is no such file
	buf := bufio.NewWriterSize(tmp, 1<<20)
	if err := errors.Join(write(buf), buf.Flush(), tmp.Chmod(0o644), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}

// Write writes an archive that is both an OCI layout and a docker-archive. Both indexes point to the same blobs. Each blob
// is in the archive once, whatever the number of images and names.
func Write(w io.Writer, images ...Image) error {
	a := archive{tar: tar.NewWriter(w), have: make(map[v1.Hash]bool)}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	var docker []dockerManifest
	a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	for _, img := range images {
		p, err := img.pack()
		if err != nil {
			return fmt.Errorf("write image %v: %w", img.Names, err)
		}
		entry := dockerManifest{Config: a.blob(p.config), RepoTags: img.Names}
		for _, l := range img.Layers {
			entry.Layers = append(entry.Layers, a.known(l.data, l.digest))
		}
		docker = append(docker, entry)
		a.blob(p.manifest)
		for _, n := range img.Names {
			d := descriptor(types.OCIManifestSchema1, p.manifest, hash(p.manifest))
			d.Platform = img.platform()
			d.Annotations = map[string]string{AnnotationName: n}
			index.Manifests = append(index.Manifests, d)
		}
	}
	a.json("index.json", index)
	a.json("manifest.json", docker)
	if err := errors.Join(a.err, a.tar.Close()); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}

// archive is the state of one Write. err is the first error, after which nothing is written.
type archive struct {
	tar  *tar.Writer
	have map[v1.Hash]bool
	err  error
}

// blob writes data under its digest and returns its path in the archive.
func (a *archive) blob(data []byte) string { return a.known(data, hash(data)) }

// known is like blob, for data with a known digest, because layers are large.
func (a *archive) known(data []byte, digest v1.Hash) string {
	path := "blobs/" + digest.Algorithm + "/" + digest.Hex
	if !a.have[digest] {
		a.have[digest] = true
		a.file(path, data)
	}
	return path
}

func (a *archive) json(name string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		a.err = errors.Join(a.err, err)
		return
	}
	a.file(name, data)
}

func (a *archive) file(name string, data []byte) {
	if a.err != nil {
		return
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: time.Unix(0, 0)}
	if a.err = a.tar.WriteHeader(h); a.err == nil {
		_, a.err = a.tar.Write(data)
	}
}

func hash(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}
