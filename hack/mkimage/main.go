// Mkimage writes the product's container image without Docker: the static binaries, the programs that they start, and
// the few files that programs expect in every file system. The agent starts nft to load its constant ruleset, and both
// variants of iptables for mode iptables and for a kube-proxy's rules. It loads no modules: the kernel loads them when
// IPVS or a rule needs one.
//
//	bin/fairway ────────► /usr/bin/fairway  (entrypoint; /fairway links to it)
//	bin/fairway-cni ────► /usr/bin/fairway-cni  (the agent copies it to the node)
//	nft, iptables, … + their libraries and extensions ► the same path as on this machine
//	CA certificates ────► the same path as on this machine, if it has them
//	dpkg's status, copyright files, NOTICE, an SBOM (SPDX 2.3) ► /var/lib/dpkg, /usr/share, /NOTICE
//
// `ctr images import`, `docker load` and OCI tools accept the archive. The same files give the same bytes, and the tag
// names these bytes only. A missing program is one clear line.
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/fairway-net/fairway/internal/image"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// certificates is the path of the CA bundle in Debian, and the first that Go's crypto/x509 reads.
const certificates = "/etc/ssl/certs/ca-certificates.crt"

// protocols has the names that iptables-save prints instead of numbers.
const protocols = "/etc/protocols"

// licenceFile is Fairway's licence, relative to the root of the repository.
var licenceFile = "LICENSE"

func main() {
	out := flag.String("o", "bin/fairway-image.tar", "archive to write")
	binary := flag.String("binary", "bin/fairway", "static fairway binary to pack, with the plugin fairway-cni beside it")
	name := flag.String("name", "ghcr.io/fairway-net/fairway", "name of the image; its tag is made of the version and the digest")
	version := flag.String("version", "dev", "version of the programs")
	flag.Parse()
	if err := run(*out, *binary, *name, *version); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(out, binary, name, version string) error {
	var programs []*debug.BuildInfo
	for _, path := range []string{binary, binary + "-cni"} {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%w [run `make build` first, or name the binary with -binary]", err)
		}
		programs = append(programs, info)
	}
	c, err := product(binary, version, modules(programs...))
	if err != nil {
		return err
	}
	layer, err := c.tree.Layer()
	if err != nil {
		return err
	}
	img := image.Image{
		Names:  []string{name + ":" + version},
		Layers: []*image.Layer{layer},
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/fairway"},
			Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.source":   "https://github.com/fairway-net/fairway",
				"org.opencontainers.image.version":  version,
				"org.opencontainers.image.licenses": expression(c.packages),
			},
		},
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	tag := version + "-" + digest.Hex[:12]
	img.Names[0] = name + ":" + tag
	if err := image.WriteFile(out, img); err != nil {
		return err
	}
	beside := strings.TrimSuffix(out, ".tar")
	err = errors.Join(os.WriteFile(beside+".spdx.json", c.sbom, 0o644),
		os.WriteFile(beside+".yaml", fmt.Appendf(nil, component, name, tag, digest), 0o644))
	if err != nil {
		return fmt.Errorf("write beside the image: %w", err)
	}
	fmt.Printf("%s: %s, %.1f MB\n%s\n", out, img.Names[0], float64(layer.Size())/1e6, digest)
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

// find returns the paths of the image's programs on this machine, and all extensions of iptables, because it prints and
// restores the rules of all programs.
func find() (programs, extensions []string, err error) {
	names := []string{"nft"}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"nft", "legacy"} {
			for _, verb := range []string{"", "-save", "-restore"} {
				names = append(names, family+"-"+variant+verb)
			}
		}
	}
	for _, n := range names {
		at, err := image.Find(n)
		if err != nil {
			return nil, nil, fmt.Errorf("%w [run `make deps`, or `apt-get install nftables iptables`]", err)
		}
		programs = append(programs, at)
	}
	extensions, err = filepath.Glob("/usr/lib/*/xtables/lib*.so")
	if err != nil || len(extensions) == 0 {
		return nil, nil, errors.New("no extensions of iptables in /usr/lib/*/xtables [run `make deps`, or `apt-get install iptables`]")
	}
	return programs, extensions, nil
}

// contents holds the files of the image and the packages that own them.
type contents struct {
	tree     image.Tree
	packages []image.Package
	sbom     []byte
}

// product collects the files of the image.
func product(binary, version string, modules []module) (*contents, error) {
	programs, extensions, err := find()
	if err != nil {
		return nil, err
	}
	c := &contents{}
	t := &c.tree
	for _, p := range programs {
		t.Program(p)
	}
	for _, e := range extensions {
		t.Plugin(e, programs[len(programs)-1])
	}
	t.Copy("/usr/bin/fairway", binary)
	t.Copy("/usr/bin/fairway-cni", binary+"-cni")
	t.Link("/fairway", "usr/bin/fairway")
	for _, name := range []string{"iptables", "iptables-save", "ip6tables", "ip6tables-save"} { // the names that people type
		family, verb, _ := strings.Cut(name, "-")
		t.Link("/usr/sbin/"+name, strings.TrimSuffix(family+"-nft-"+verb, "-"))
	}
	more := []string{"base-files"}
	for _, file := range []string{certificates, protocols} {
		if _, err := os.Stat(file); err == nil {
			t.Same(file)
		}
	}
	if _, err := os.Stat(certificates); err == nil {
		more = append(more, "ca-certificates") // the package makes the bundle when it is installed
	}
	t.File("/etc/passwd", 0o644, "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")
	t.File("/etc/group", 0o644, "root:x:0:\nnonroot:x:65532:\n")
	// Go's resolver needs this to read the hosts file first.
	t.File("/etc/nsswitch.conf", 0o644, "hosts: files dns\n")
	t.Dir("/tmp", 0o777|os.ModeSticky)
	t.Dir("/run", 0o755) // iptables-legacy locks a file there
	return c, c.provenance(version, modules, more)
}

// provenance adds the files that name the origin and the licences of the image's files.
func (c *contents) provenance(version string, modules []module, more []string) (err error) {
	var unowned []string
	if c.packages, unowned, err = c.tree.Packages(more...); err != nil {
		return err
	}
	for _, file := range unowned {
		if file != certificates {
			return fmt.Errorf("%s belongs to no Debian package: nobody would know its licence and its vulnerabilities", file)
		}
	}
	c.tree.PackageStatus(c.packages)
	c.tree.File("/NOTICE", 0o644, notice(c.packages))
	c.tree.Copy("/LICENSE", licenceFile)
	if err := moduleLicences(&c.tree, modules); err != nil {
		return err
	}
	if c.sbom, err = sbom(version, c.packages, modules, distribution()); err != nil {
		return err
	}
	c.tree.File("/usr/share/sbom/fairway.spdx.json", 0o644, string(c.sbom))
	return nil
}

// distribution returns this machine's name in package URLs: debian-12.
func distribution() string {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "debian"
	}
	value := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		value[key] = strings.Trim(v, `"`)
	}
	return value["ID"] + "-" + value["VERSION_ID"]
}
