package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// annotationRef is OCI's annotation with the reference of an image, which skopeo and crane show.
const annotationRef = "org.opencontainers.image.ref.name"

// An Index is one image in forms for several architectures. A node's runtime takes the form for its own.
type Index struct {
	// Name is the full name of the index, as in Image.
	Name string
	// Images have different architectures. Their names are ignored.
	Images []Image
}

// Digest returns the digest of the index, which a registry shows for its name. The digest does not depend on the name.
func (x Index) Digest() (v1.Hash, error) {
	text, _, err := x.pack()
	return hash(text), err
}

// pack makes the index and the documents of its images.
func (x Index) pack() (text []byte, images []packed, err error) {
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, img := range x.Images {
		img.Names = []string{x.Name}
		p, err := img.pack()
		if err != nil {
			return nil, nil, err
		}
		images = append(images, p)
		d := descriptor(types.OCIManifestSchema1, p.manifest, hash(p.manifest))
		d.Platform = img.platform()
		index.Manifests = append(index.Manifests, d)
	}
	if text, err = json.Marshal(index); err != nil {
		return nil, nil, fmt.Errorf("index: %w", err)
	}
	return text, images, nil
}

// WriteIndexFile writes an index as an OCI layout in an archive, and returns its digest. It is no docker-archive, which
// has no architectures.
func WriteIndexFile(file string, x Index) (v1.Hash, error) {
	text, images, err := x.pack()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("write index %s: %w", x.Name, err)
	}
	err = whole(file, func(w io.Writer) error {
		a := archive{tar: tar.NewWriter(w), have: make(map[v1.Hash]bool)}
		a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
		for i, p := range images {
			a.blob(p.config)
			for _, l := range x.Images[i].Layers {
				a.known(l.data, l.digest)
			}
			a.blob(p.manifest)
		}
		a.blob(text)
		d := descriptor(types.OCIImageIndex, text, hash(text))
		d.Annotations = map[string]string{AnnotationName: x.Name, annotationRef: x.Name}
		a.json("index.json", v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{d}})
		return errors.Join(a.err, a.tar.Close())
	})
	return hash(text), err
}
