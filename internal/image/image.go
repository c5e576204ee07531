package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// An Image is what Write puts into an archive.
type Image struct {
	// Names are full names with registry and tag, as containerd stores them: docker.io/library/busybox:latest.
	// At least one; several names share everything.
	Names []string
	// Layers from the bottom to the top; at least one.
	Layers []*Layer
	// Config is what a container gets: entrypoint, command, environment, user, ports. The zero value runs nothing.
	Config v1.Config
}

// fullName matches registry/path:tag. The registry must look like a host (a dot or a port), or a loader would take
// its name for the first part of a path on docker.io.
var fullName = regexp.MustCompile(`^[a-z0-9-]+([.:][a-z0-9-]+)+(/[a-z0-9][a-z0-9._-]*)+:[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// Digest is the digest of the image's manifest, by which registries and runtimes know it. Names are not part of it.
func (img Image) Digest() (v1.Hash, error) {
	p, err := img.pack()
	if err != nil {
		return v1.Hash{}, err
	}
	return hash(p.manifest), nil
}

// packed is an image as its two documents.
type packed struct {
	config, manifest []byte
}

// pack makes the configuration and the manifest. The programs are this machine's, so the architecture is too.
func (img Image) pack() (packed, error) {
	if len(img.Names) == 0 || len(img.Layers) == 0 {
		return packed{}, errors.New("an image needs a name and a layer")
	}
	for _, n := range img.Names {
		if !fullName.MatchString(n) {
			return packed{}, fmt.Errorf("name %q is not complete (write registry/path:tag, as docker.io/library/busybox:latest)", n)
		}
	}
	config := v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, Config: img.Config,
		Created: v1.Time{Time: time.Unix(0, 0).UTC()},
		RootFS:  v1.RootFS{Type: "layers"},
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, l := range img.Layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.digest)
		manifest.Layers = append(manifest.Layers, descriptor(types.OCIUncompressedLayer, l.data, l.digest))
	}
	rawConfig, err := json.Marshal(config)
	if err != nil {
		return packed{}, fmt.Errorf("configuration: %w", err)
	}
	manifest.Config = descriptor(types.OCIConfigJSON, rawConfig, hash(rawConfig))
	rawManifest, err := json.Marshal(manifest)
	if err != nil {
		return packed{}, fmt.Errorf("manifest: %w", err)
	}
	return packed{config: rawConfig, manifest: rawManifest}, nil
}

func descriptor(kind types.MediaType, data []byte, digest v1.Hash) v1.Descriptor {
	return v1.Descriptor{MediaType: kind, Size: int64(len(data)), Digest: digest}
}
