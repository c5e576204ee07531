// Mkimage writes the product's container image without Docker: the static binary, the programs that it starts, and
// the few files that programs expect in every file system. It starts nft, with which the agent loads its constant
// ruleset once; iptables in both variants, for mode iptables and for what a kube-proxy left; modprobe, for the modules
// of iptables-legacy and IPVS, which the kernel does not load by itself.
//
//	bin/fairway ────────► /usr/bin/fairway  (entrypoint; /fairway links to it)
//	bin/fairway-cni ────► /usr/bin/fairway-cni  (the agent copies it to the node)
//	nft, iptables, … + their libraries and extensions ► where they are on this machine
//	CA certificates ────► where they are on this machine, if they are
//
// It promises an archive that `ctr images import`, `docker load` and OCI tools accept, the same bytes for the same
// files, and one clear line when something is missing.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairway-net/fairway/internal/image"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// certificates is where Debian, and Go's crypto/x509 first of all, look for the CA bundle.
const certificates = "/etc/ssl/certs/ca-certificates.crt"

// protocols has the names that iptables-save prints in place of numbers.
const protocols = "/etc/protocols"

func main() {
	out := flag.String("o", "bin/fairway-image.tar", "archive to write")
	binary := flag.String("binary", "bin/fairway", "static fairway binary to pack, with the plugin fairway-cni beside it")
	name := flag.String("name", "ghcr.io/fairway-net/fairway:dev", "full name of the image, with tag")
	flag.Parse()
	if err := run(*out, *binary, *name); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(out, binary, name string) error {
	for _, path := range []string{binary, binary + "-cni"} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%w [run `make build` first, or name the binary with -binary]", err)
		}
	}
	programs, extensions, err := find()
	if err != nil {
		return err
	}
	layer, err := product(binary, programs, extensions)
	if err != nil {
		return err
	}
	err = image.WriteFile(out, image.Image{
		Names:  []string{name},
		Layers: []*image.Layer{layer},
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/fairway"},
			Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.source":   "https://github.com/fairway-net/fairway",
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s, %.1f MB\n", out, name, float64(layer.Size())/1e6)
	return nil
}

// find returns where the programs of the image are on this machine, and the extensions that iptables loads: all of
// them, because it must print and restore the rules of all programs.
func find() (programs, extensions []string, err error) {
	names := []string{"nft", "modprobe"}
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
			return nil, nil, fmt.Errorf("%w [run `make deps`, or `apt-get install nftables iptables kmod`]", err)
		}
		programs = append(programs, at)
	}
	extensions, err = filepath.Glob("/usr/lib/*/xtables/lib*.so")
	if err != nil || len(extensions) == 0 {
		return nil, nil, errors.New("no extensions of iptables in /usr/lib/*/xtables [run `make deps`, or `apt-get install iptables`]")
	}
	return programs, extensions, nil
}

// product is the one layer of the image.
func product(binary string, programs, extensions []string) (*image.Layer, error) {
	var t image.Tree
	for _, p := range programs {
		t.Program(p)
	}
	for _, e := range extensions {
		t.Plugin(e, programs[len(programs)-1])
	}
	t.Copy("/usr/bin/fairway", binary)
	t.Copy("/usr/bin/fairway-cni", binary+"-cni")
	t.Link("/fairway", "usr/bin/fairway")
	for _, file := range []string{certificates, protocols} {
		if _, err := os.Stat(file); err == nil {
			t.Same(file)
		}
	}
	t.File("/etc/passwd", 0o644, "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")
	t.File("/etc/group", 0o644, "root:x:0:\nnonroot:x:65532:\n")
	// Go's resolver reads the hosts file first only when told so.
	t.File("/etc/nsswitch.conf", 0o644, "hosts: files dns\n")
	t.Dir("/tmp", 0o777|os.ModeSticky)
	t.Dir("/run", 0o755) // iptables-legacy locks a file there
	return t.Layer()
}
