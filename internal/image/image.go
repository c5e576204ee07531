package image

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// An Image is a container image for an archive.
type Image struct {
	// Names are full names with registry and tag, as containerd stores them: docker.io/library/busybox:latest.
	// At least one; several names share everything.
	Names []string
	// Layers from the bottom to the top; at least one.
	Layers []*Layer
	// Architecture is Go's name of the programs' architecture. "" is this machine's.
	Architecture string
	// Config is the configuration of containers: entrypoint, command, environment, user, ports. The zero value runs nothing.
	Config v1.Config
}

func (img Image) platform() *v1.Platform {
	return &v1.Platform{OS: "linux", Architecture: cmp.Or(img.Architecture, runtime.GOARCH)}
}

// fullName matches registry/path:tag. The registry must have a dot or a port, or a loader would take its name for the first
// part of a path on docker.io.
var fullName = regexp.MustCompile(`^[a-z0-9-]+([.:][a-z0-9-]+)+(/[a-z0-9][a-z0-9._-]*)+:[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// Digest returns the digest of the image's manifest, which identifies the image to registries and runtimes. It does not
// depend on the names.
func (img Image) Digest() (v1.Hash, error) {
	p, err := img.pack()
	if err != nil {
		return v1.Hash{}, err
	}
	return hash(p.manifest), nil
}

// packed has the two documents of an image.
type packed struct {
	config, manifest []byte
}

// pack makes the configuration and the manifest.
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
		OS: "linux", Architecture: img.platform().Architecture, Config: img.Config,
		Created: v1.Time{Time: time.Unix(0, 0).UTC()},
		RootFS:  v1.RootFS{Type: "layers"},
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, l := range img.Layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.diffID)
		manifest.Layers = append(manifest.Layers, descriptor(l.kind, l.data, l.digest))
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
