package image

import (
	"slices"
	"strings"
	"testing"
)

// TestPackages: nft brings its own package, that of the C library, and files that no package has
// are named.
func TestPackages(t *testing.T) {
	nft, err := Find("nft")
	must(t, err)
	var tree Tree
	tree.Program(nft)
	tree.Same("/etc/passwd")
	tree.Copy("/usr/bin/other", "/bin/true") // under another name: not looked for
	packages, unowned, err := tree.Packages("base-files")
	must(t, err)
	if !slices.Equal(unowned, []string{"/etc/passwd"}) {
		t.Errorf("files without a package: %v", unowned)
	}
	for _, want := range []string{"nftables", "libnftables1", "libc6", "base-files"} {
		i := slices.IndexFunc(packages, func(p Package) bool { return p.Name == want })
		if i < 0 {
			t.Errorf("no package %s in %v", want, packages)
			continue
		}
		p := packages[i]
		if p.Version == "" || p.Architecture == "" || p.Source == "" || p.SourceVersion == "" || !strings.HasPrefix(p.Status, "Package: "+want+"\n") {
			t.Errorf("package %s is described as %+v", want, p)
		}
	}
	tree.PackageStatus(packages)
	layer, err := tree.Layer()
	must(t, err)
	list := listing(t, layer)
	for _, want := range []string{" var/lib/dpkg/status\n", " etc/os-release", " usr/share/doc/nftables/copyright\n"} {
		if !strings.Contains(list, want) {
			t.Errorf("the layer has no %q:\n%s", want, list)
		}
	}
}
