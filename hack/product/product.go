// Package product says what is in Fairway's container image: the static binaries, the programs that they start, and the
// few files that programs expect in every file system. The agent starts nft to load its constant ruleset, and both
// variants of iptables for mode iptables and for a kube-proxy's rules. It loads no modules: the kernel loads them when
// IPVS or a rule needs one.
//
//	bin/fairway ────────► /usr/bin/fairway  (entrypoint; /fairway links to it)
//	bin/fairway-cni ────► /usr/bin/fairway-cni  (the agent copies it to the node)
//	nft, iptables, … + their libraries and extensions ► the same path as in Debian
//	CA certificates ────► the same path as in Debian, if they are there
//	dpkg's status, copyright files, NOTICE, an SBOM (SPDX 2.3) ► /var/lib/dpkg, /usr/share, /NOTICE
//
// Debian's files are this machine's, or a root's made by hack/debian-root. The same files give the same bytes.
package product

import (
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/fairway-net/fairway/internal/image"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Repository is the name of the product's image, without a tag.
const Repository = "ghcr.io/fairway-net/fairway"

// certificates is the path of the CA bundle in Debian, and the first that Go's crypto/x509 reads.
const certificates = "/etc/ssl/certs/ca-certificates.crt"

// protocols has the names that iptables-save prints instead of numbers.
const protocols = "/etc/protocols"

// Contents holds the files of the image of one architecture and the packages that own them.
type Contents struct {
	Architecture string // Go's name of it
	SBOM         []byte // SPDX 2.3, in JSON
	version      string
	tree         image.Tree
	packages     []image.Package
}

// Programs are Fairway's binaries of one architecture.
type Programs struct {
	Architecture string // Go's name of it
	binary       string
	modules      []module
}

// ReadPrograms reads what two Go binaries say of themselves: a binary fairway, and fairway-cni next to it.
func ReadPrograms(binary string) (Programs, error) {
	p := Programs{binary: binary}
	var all []*debug.BuildInfo
	for _, path := range []string{binary, binary + "-cni"} {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return p, fmt.Errorf("%w [run `make build` first, or name the binary with -binary]", err)
		}
		all = append(all, info)
		for _, s := range info.Settings {
			if s.Key == "GOARCH" {
				p.Architecture = s.Value
			}
		}
	}
	p.modules = modules(all...)
	return p, nil
}

// Collect collects the files of the image. Root is the directory with Debian's files, "" for this machine's. Licence is
// the file with Fairway's licence.
func Collect(p Programs, version, root, licence string) (*Contents, error) {
	c := &Contents{Architecture: p.Architecture, version: version, tree: image.Tree{Root: root}}
	t := &c.tree
	programs, extensions, err := c.find()
	if err != nil {
		return nil, err
	}
	for _, p := range programs {
		t.Program(p)
	}
	for _, e := range extensions {
		t.Plugin(e, programs[len(programs)-1])
	}
	t.Copy("/usr/bin/fairway", p.binary)
	t.Copy("/usr/bin/fairway-cni", p.binary+"-cni")
	t.Link("/fairway", "usr/bin/fairway")
	for _, name := range []string{"iptables", "iptables-save", "ip6tables", "ip6tables-save"} { // the names that people type
		family, verb, _ := strings.Cut(name, "-")
		t.Link("/usr/sbin/"+name, strings.TrimSuffix(family+"-nft-"+verb, "-"))
	}
	more := []string{"base-files"}
	if t.IfThere(certificates) {
		more = append(more, "ca-certificates") // the package makes the bundle when it is installed
	}
	t.IfThere(protocols)
	t.File("/etc/passwd", 0o644, "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")
	t.File("/etc/group", 0o644, "root:x:0:\nnonroot:x:65532:\n")
	// Go's resolver needs this to read the hosts file first.
	t.File("/etc/nsswitch.conf", 0o644, "hosts: files dns\n")
	t.Dir("/tmp", 0o777|os.ModeSticky)
	t.Dir("/run", 0o755) // iptables-legacy locks a file there
	t.Copy("/LICENSE", licence)
	return c, c.provenance(p.modules, more)
}

// find returns the paths of the image's programs in Debian, and all extensions of iptables, because it prints and
// restores the rules of all programs.
func (c *Contents) find() (programs, extensions []string, err error) {
	names := []string{"nft"}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"nft", "legacy"} {
			for _, verb := range []string{"", "-save", "-restore"} {
				names = append(names, family+"-"+variant+verb)
			}
		}
	}
	for _, n := range names {
		at, err := c.tree.Find(n)
		if err != nil {
			return nil, nil, fmt.Errorf("%w [run `make deps`, or `apt-get install nftables iptables`]", err)
		}
		programs = append(programs, at)
	}
	extensions, err = fs.Glob(os.DirFS(cmp.Or(c.tree.Root, "/")), "usr/lib/*/xtables/lib*.so")
	if err != nil || len(extensions) == 0 {
		return nil, nil, errors.New("no extensions of iptables in /usr/lib/*/xtables [run `make deps`, or `apt-get install iptables`]")
	}
	for i := range extensions {
		extensions[i] = "/" + extensions[i]
	}
	return programs, extensions, nil
}

// provenance adds the files that name the origin and the licences of the image's files.
func (c *Contents) provenance(modules []module, more []string) (err error) {
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
	if err := moduleLicences(&c.tree, "/usr/share/doc/fairway", modules); err != nil {
		return err
	}
	if c.SBOM, err = sbom("fairway-"+c.version, c.version, c.packages, modules, distribution(c.tree.Root)); err != nil {
		return err
	}
	c.tree.File("/usr/share/sbom/fairway.spdx.json", 0o644, string(c.SBOM))
	return nil
}

// Image makes the image. It has no name yet.
func (c *Contents) Image() (image.Image, error) {
	layer, err := c.tree.Layer()
	return image.Image{
		Architecture: c.Architecture,
		Layers:       []*image.Layer{layer},
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/fairway"},
			Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.source":   "https://github.com/fairway-net/fairway",
				"org.opencontainers.image.version":  c.version,
				"org.opencontainers.image.licenses": expression(c.packages),
			},
		},
	}, err
}

// distribution returns the name of a root's Debian in package URLs: debian-12.
func distribution(root string) string {
	text, err := os.ReadFile(filepath.Join(cmp.Or(root, "/"), "usr/lib/os-release"))
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

// Tarball packs the programs without Debian's files, for a machine without Kubernetes: the binaries, Fairway's licence
// and those of its modules, below a directory. It returns the gzipped archive and its SBOM.
func (p Programs) Tarball(dir, version, licence string) (archive, bill []byte, err error) {
	var t image.Tree
	t.Copy(dir+"/fairway", p.binary)
	t.Copy(dir+"/fairway-cni", p.binary+"-cni")
	t.Copy(dir+"/LICENSE", licence)
	if err := moduleLicences(&t, dir+"/licences", p.modules); err != nil {
		return nil, nil, err
	}
	if bill, err = sbom(dir, version, nil, p.modules, ""); err != nil {
		return nil, nil, err
	}
	layer, err := t.Layer()
	if err == nil {
		layer, err = layer.Compress()
	}
	if err != nil {
		return nil, nil, err
	}
	return layer.Bytes(), bill, nil
}
