package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// A Layer is a packed tree. Any number of images may share it, in one archive or in several. The same files give the same
// bytes and the same digest, so a node stores the layer once.
//
// A layer is not compressed. A node on the same machine reads it from a local disk, where decompression costs more than
// reading. A registry's client compresses such a layer when it pushes, which changes the digests of layer and image. An
// image for a registry has layers made by Compress, and keeps its digest.
type Layer struct {
	data   []byte
	digest v1.Hash // of data
	diffID v1.Hash // of the data without compression
	kind   types.MediaType
}

// Layer packs the tree, or returns the first error met while the tree was put together.
func (t *Tree) Layer() (*Layer, error) {
	if t.err != nil {
		return nil, fmt.Errorf("layer: %w", t.err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range t.names() {
		if err := writeEntry(w, name, t.entries[name]); err != nil {
			return nil, fmt.Errorf("layer: %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	digest := hash(buf.Bytes())
	return &Layer{data: buf.Bytes(), digest: digest, diffID: digest, kind: types.OCIUncompressedLayer}, nil
}

// Compress returns an uncompressed layer's compressed form. The same release of Go gives the same bytes.
func (l *Layer) Compress() (*Layer, error) {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(l.data); err != nil {
		return nil, fmt.Errorf("compress layer: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress layer: %w", err)
	}
	return &Layer{data: buf.Bytes(), digest: hash(buf.Bytes()), diffID: l.diffID, kind: types.OCILayer}, nil
}

// Bytes returns the layer as an archive of tar, gzipped if the layer is compressed. The caller must not change it.
func (l *Layer) Bytes() []byte { return l.data }

// Size returns the number of bytes of the layer in an archive. A node's disk needs about the same.
func (l *Layer) Size() int { return len(l.data) }

func writeEntry(w *tar.Writer, name string, e entry) error {
	h := &tar.Header{Name: name, Mode: tarMode(e.mode), ModTime: time.Unix(0, 0)}
	var data []byte
	switch {
	case e.mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case e.target != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.target
	default:
		h.Typeflag = tar.TypeReg
		var err error
		if data, err = e.read(); err != nil {
			return err
		}
		h.Size = int64(len(data))
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}

// tarMode converts Go's permission bits to the archive's (and chmod's).
func tarMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	for _, bit := range []struct {
		have fs.FileMode
		want int64
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&bit.have != 0 {
			mode |= bit.want
		}
	}
	return mode
}
