package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// unpacked writes a layer's files below a new directory.
func unpacked(t *testing.T, layer *Layer) (root string) {
	t.Helper()
	root = t.TempDir()
	unpack := exec.Command("tar", "-x", "-C", root)
	unpack.Stdin = bytes.NewReader(layer.data)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v: %s", err, out)
	}
	return root
}

// TestRoot makes the layer of a program a second time, from the unpacked files of the first: what DT_NEEDED names
// is what the dynamic linker loads, and the packages are the same.
func TestRoot(t *testing.T) {
	nft, err := Find("nft")
	must(t, err)
	var this Tree
	this.Program(nft)
	packages, _, err := this.Packages("base-files")
	must(t, err)
	this.PackageStatus(packages)
	layer, err := this.Layer()
	must(t, err)

	other := Tree{Root: unpacked(t, layer)}
	must(t, os.RemoveAll(filepath.Join(other.Root, "var/lib/dpkg")))
	must(t, os.Symlink("/var/lib/dpkg", filepath.Join(other.Root, "var/lib/dpkg")))
	at, err := other.Find("nft")
	must(t, err)
	other.Program(at)
	again, unowned, err := other.Packages("base-files")
	if err != nil || len(unowned) > 0 || !slices.Equal(packages, again) {
		t.Errorf("packages %v, unowned %v, %v, want %v", again, unowned, err, packages)
	}
	other.PackageStatus(again)
	second, err := other.Layer()
	must(t, err)
	if a, b := listing(t, layer), listing(t, second); a != b {
		t.Errorf("from its files the layer has\n%s\nwant\n%s", b, a)
	}
}

// TestRootLacks: a library or a program that is on this machine and not in the root is not taken from here.
func TestRootLacks(t *testing.T) {
	nft, err := Find("nft")
	must(t, err)
	var this Tree
	this.Program(nft)
	layer, err := this.Layer()
	must(t, err)
	other := Tree{Root: unpacked(t, layer)}
	if at, err := other.Find("ip"); err == nil {
		t.Errorf("ip was found at %s", at)
	}
	gone, err := filepath.Glob(other.Root + "/usr/lib/*/libmnl.so.0")
	if err != nil || len(gone) != 1 {
		t.Fatal(gone, err)
	}
	must(t, os.Remove(gone[0]))
	other.Program(nft)
	if _, err := other.Layer(); err == nil || !strings.Contains(err.Error(), "libmnl.so.0: not found in "+other.Root) {
		t.Errorf("error %v, want one that names the library", err)
	}
}
