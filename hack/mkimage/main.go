// Mkimage writes the product's container image without Docker: package product says what is in it.
//
// `ctr images import`, `docker load` and OCI tools accept the archive. The same files give the same bytes, and the tag
// names these bytes only. The image has the architecture of the binaries. A missing program is one clear line.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/fairway-net/fairway/hack/product"
	"github.com/fairway-net/fairway/internal/image"
)

// options are the flags.
type options struct{ out, binary, name, version, root, licence string }

func main() {
	var o options
	flag.StringVar(&o.out, "o", "bin/fairway-image.tar", "archive to write")
	flag.StringVar(&o.binary, "binary", "bin/fairway", "static fairway binary to pack, with the plugin fairway-cni beside it")
	flag.StringVar(&o.name, "name", product.Repository, "name of the image; its tag is made of the version and the digest")
	flag.StringVar(&o.version, "version", "dev", "version of the programs")
	flag.StringVar(&o.root, "root", "", "directory with Debian's files, made by hack/debian-root for the binary's architecture (default: this machine's)")
	flag.Parse()
	o.licence = "LICENSE"
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	programs, err := product.ReadPrograms(o.binary)
	if err != nil {
		return err
	}
	c, err := product.Collect(programs, o.version, o.root, o.licence)
	if err != nil {
		return err
	}
	img, err := c.Image()
	if err != nil {
		return err
	}
	img.Names = []string{o.name + ":" + o.version}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	tag := o.version + "-" + digest.Hex[:12]
	img.Names[0] = o.name + ":" + tag
	if err := image.WriteFile(o.out, img); err != nil {
		return err
	}
	beside := strings.TrimSuffix(o.out, ".tar")
	err = errors.Join(os.WriteFile(beside+".spdx.json", c.SBOM, 0o644),
		os.WriteFile(beside+".yaml", fmt.Appendf(nil, component, o.name, tag, digest), 0o644))
	if err != nil {
		return fmt.Errorf("write beside the image: %w", err)
	}
	fmt.Printf("%s: %s, linux/%s, %.1f MB\n%s\n", o.out, img.Names[0], c.Architecture, float64(img.Layers[0].Size())/1e6, digest)
	return nil
}

// component is deploy/image/kustomization.yaml for this image.
const component = `# Which image deploy/ runs. Of a registry, write in place of newTag
#   digest: <the digest that the registry shows>
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
images:
- name: %s
  newTag: %s # the image with the digest %s, and no other
`
