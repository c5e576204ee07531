// Mkrelease writes the files of a release:
//
//	bin/release.tmp/ARCH/fairway, fairway-cni ┐
//	bin/release.tmp/debian-ARCH/ ─────────────┴─ hack/product ─▶ programs, image index, SBOMs ┐
//	deploy/, docs/helm.md ─────────────────────── hack/chart ──▶ Helm chart                   ├▶ SHA256SUMS
//	CHANGELOG.md ─────────────────────────────────────────────▶ NOTES.md                     ┘
//
// It runs in the root of the repository. The same sources, release of Go and Debian packages give the same bytes.
package main

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/deploy"
	"github.com/fairway-net/fairway/hack/chart"
	"github.com/fairway-net/fairway/hack/product"
	"github.com/fairway-net/fairway/internal/image"
)

func main() {
	var r release
	flag.StringVar(&r.dir, "dir", "bin/release", "directory to write")
	flag.StringVar(&r.inputs, "inputs", "bin/release.tmp", "directory with the binaries in ARCH/ and Debian's files in debian-ARCH/")
	flag.StringVar(&r.version, "version", "v0.0.0-dev", "version of the programs")
	flag.StringVar(&r.sources, "sources", ".", "root of the repository")
	flag.Parse()
	log.SetFlags(0)
	r.architectures = flag.Args()
	if err := r.write(); err != nil {
		log.Fatalln("mkrelease:", err)
	}
}

// A release is the input of one run.
type release struct {
	dir, inputs, version, sources string
	architectures                 []string
}

// write writes all files. On an error it leaves no SHA256SUMS.
func (r release) write() error {
	changes, err := os.ReadFile(filepath.Join(r.sources, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	section, err := section(string(changes), r.version)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	index, err := r.programs()
	if err != nil {
		return err
	}
	if index.Name, err = r.imageName(index); err != nil {
		return err
	}
	digest, err := image.WriteIndexFile(filepath.Join(r.dir, "fairway-image-"+r.version+".tar"), index)
	if err != nil {
		return err
	}
	if err := r.chart(index.Name); err != nil {
		return err
	}
	if err := r.file("NOTES.md", []byte(notes(section, r.version, index.Name, digest.String()))); err != nil {
		return err
	}
	fmt.Printf("%s: %s for %s\n%s\n", r.dir, index.Name, strings.Join(r.architectures, ", "), digest)
	return r.sums()
}

// programs writes the archives of the programs and all SBOMs, and returns the images, whose layers are compressed: a
// registry then has the digest of the release.
func (r release) programs() (index image.Index, err error) {
	licence := filepath.Join(r.sources, "LICENSE")
	for _, arch := range r.architectures {
		p, err := product.ReadPrograms(filepath.Join(r.inputs, arch, "fairway"))
		if err != nil {
			return index, err
		}
		if p.Architecture != arch {
			return index, fmt.Errorf("the programs in %s are for %s", filepath.Join(r.inputs, arch), p.Architecture)
		}
		name := "fairway-" + r.version + "-linux-" + arch
		archive, bill, err := p.Tarball(name, r.version, licence)
		if err != nil {
			return index, err
		}
		c, err := product.Collect(p, r.version, filepath.Join(r.inputs, "debian-"+arch), licence)
		if err != nil {
			return index, err
		}
		img, err := c.Image()
		if err != nil {
			return index, err
		}
		if img.Layers[0], err = img.Layers[0].Compress(); err != nil {
			return index, err
		}
		index.Images = append(index.Images, img)
		for file, data := range map[string][]byte{
			name + ".tar.gz": archive, name + ".spdx.json": bill,
			"fairway-image-" + r.version + "-linux-" + arch + ".spdx.json": c.SBOM,
		} {
			if err := r.file(file, data); err != nil {
				return index, err
			}
		}
	}
	return index, nil
}

// imageName names the index. A release's tag is its version. The tag of any other version names one digest only.
func (r release) imageName(index image.Index) (string, error) {
	index.Name = product.Repository + ":" + r.version
	if !strings.Contains(r.version, "-") {
		return index.Name, nil
	}
	digest, err := index.Digest()
	return index.Name + "-" + digest.Hex[:12], err
}

func (r release) chart(image string) error {
	readme, err := os.ReadFile(filepath.Join(r.sources, "docs/helm.md"))
	if err != nil {
		return err
	}
	files, err := chart.Chart{Manifests: deploy.Files, Version: r.version, Image: image, Readme: string(readme)}.Files()
	if err != nil {
		return err
	}
	archive, err := chart.Archive(files)
	if err != nil {
		return err
	}
	return r.file("fairway-"+strings.TrimPrefix(r.version, "v")+".tgz", archive)
}

func (r release) file(name string, data []byte) error {
	return os.WriteFile(filepath.Join(r.dir, name), data, 0o644)
}

// sums writes the digests of the files for sha256sum.
func (r release) sums() error {
	found, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	sums := map[string][]byte{}
	for _, f := range found {
		data, err := os.ReadFile(filepath.Join(r.dir, f.Name()))
		if err != nil {
			return err
		}
		sums[f.Name()] = fmt.Appendf(nil, "%x  %s\n", sha256.Sum256(data), f.Name())
	}
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		text.Write(sums[name])
	}
	return r.file("SHA256SUMS", text.Bytes())
}
