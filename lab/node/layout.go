package node

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/fairway-net/fairway/internal/image"
)

// A layout is an archive with an OCI layout whose layers are not compressed. "make image" and "make images" write such
// archives.
type layout struct {
	file   *os.File
	blobs  map[digest.Digest]*io.SectionReader
	images []layoutImage
}

type layoutImage struct {
	name     string
	target   v1.Descriptor
	manifest v1.Manifest
	config   v1.Image
}

// errNoLayout says that an archive has another format, which containerd's own import may understand.
var errNoLayout = errors.New("not an OCI layout with names and plain layers")

// openLayout reads an archive's index, manifests and configurations, but not its layers.
func openLayout(archive string) (*layout, error) {
	file, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	l := &layout{file: file, blobs: map[digest.Digest]*io.SectionReader{}}
	if err := l.read(); err != nil {
		file.Close()
		return nil, err
	}
	return l, nil
}

func (l *layout) read() error {
	var index v1.Index
	for all := tar.NewReader(l.file); ; {
		header, err := all.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		at, err := l.file.Seek(0, io.SeekCurrent) // the start of the file's data
		if err != nil {
			return err
		}
		if hash, ok := strings.CutPrefix(header.Name, "blobs/sha256/"); ok {
			l.blobs[digest.NewDigestFromEncoded(digest.SHA256, hash)] = io.NewSectionReader(l.file, at, header.Size)
		}
		if header.Name == "index.json" {
			if err := json.NewDecoder(all).Decode(&index); err != nil {
				return err
			}
		}
	}
	for _, d := range index.Manifests {
		if err := l.readImage(d); err != nil {
			return err
		}
	}
	if len(l.images) == 0 {
		return errNoLayout
	}
	return nil
}

// readImage reads an image's manifest and configuration, which list its layers.
func (l *layout) readImage(target v1.Descriptor) error {
	i := layoutImage{name: target.Annotations[image.AnnotationName], target: target}
	if i.name == "" || target.MediaType != v1.MediaTypeImageManifest {
		return errNoLayout
	}
	if err := l.decode(target, &i.manifest); err != nil {
		return err
	}
	if err := l.decode(i.manifest.Config, &i.config); err != nil {
		return err
	}
	if len(i.manifest.Layers) != len(i.config.RootFS.DiffIDs) {
		return errNoLayout
	}
	for n, layer := range i.manifest.Layers {
		if layer.MediaType != v1.MediaTypeImageLayer || layer.Digest != i.config.RootFS.DiffIDs[n] || l.blobs[layer.Digest] == nil {
			return errNoLayout
		}
	}
	l.images = append(l.images, i)
	return nil
}

func (l *layout) decode(d v1.Descriptor, into any) error {
	blob := l.blobs[d.Digest]
	if blob == nil {
		return errNoLayout
	}
	return json.NewDecoder(io.NewSectionReader(blob, 0, blob.Size())).Decode(into)
}

// extract writes a blob into containerd's directory of blobs, unless the blob exists, and verifies its digest.
func (l *layout) extract(dir string, d v1.Descriptor) error {
	path := filepath.Join(dir, d.Digest.Encoded())
	if exists(path) {
		return nil
	}
	out, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	blob, verifier := l.blobs[d.Digest], d.Digest.Verifier()
	in := io.NewSectionReader(blob, 0, blob.Size())
	if _, err := io.CopyBuffer(io.MultiWriter(out, verifier), in, make([]byte, 1<<20)); err != nil {
		return err
	}
	if !verifier.Verified() || blob.Size() != d.Size {
		return fmt.Errorf("%s is damaged", d.Digest)
	}
	return errors.Join(out.Chmod(0o444), os.Rename(out.Name(), path))
}
