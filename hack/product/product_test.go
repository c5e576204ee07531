package product

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestProvenance: each Debian package of the image is in the SBOM, in dpkg's status and in the
// notice, with a licence that is known, and each module is in the SBOM.
func TestProvenance(t *testing.T) {
	all := []module{{"stdlib", "1.26.8"}, {"example.org/m", "v1.2.3+incompatible"}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "fairway")
	if err := errors.Join(os.Symlink(self, binary), os.Symlink(self, binary+"-cni")); err != nil {
		t.Fatal(err)
	}
	c, err := Collect(Programs{binary: binary}, "v1", "", "../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	text, err := sbom("fairway-v1", "v1", c.packages, all, "debian-12")
	if err != nil {
		t.Fatal(err)
	}
	var d spdx
	if err := json.Unmarshal(text, &d); err != nil || len(d.Packages) != 1+len(c.packages)+len(all) || len(d.Relationships) != len(d.Packages) {
		t.Fatalf("%d packages, %d relationships, %v", len(d.Packages), len(d.Relationships), err)
	}
	ids := map[string]bool{}
	for _, p := range d.Packages {
		if ids[p.ID] || !regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`).MatchString(p.ID) {
			t.Errorf("the name %q is used twice, or not allowed", p.ID)
		}
		ids[p.ID] = true
	}
	said, status := notice(c.packages), ""
	for _, p := range c.packages {
		status += p.Name + " "
		if strings.HasPrefix(licence(p.Name), "LicenseRef") {
			t.Errorf("the licence of %s is not known: write it into notice.go", p.Name)
		}
		if !strings.Contains(said, p.Name+" "+p.Version+"\n  "+licence(p.Name)) || !strings.Contains(string(text), "pkg:deb/debian/"+p.Name+"@") {
			t.Errorf("the notice or the SBOM lacks %s", p.Name)
		}
	}
	for _, want := range []string{"nftables", "libc6", "iptables", "libxtables12"} {
		if !slices.Contains(strings.Fields(status), want) {
			t.Errorf("no package %s in %s", want, status)
		}
	}
	if !strings.Contains(string(text), "pkg:golang/example.org/m@v1.2.3%2Bincompatible") {
		t.Error("the SBOM lacks a module")
	}
	if e := expression(c.packages); !strings.HasPrefix(e, "Apache-2.0 AND ") || !strings.Contains(e, "GPL-2.0-only") || !strings.Contains(e, " AND LGPL-2.1-or-later") {
		t.Errorf("the licence of the image is %s", e)
	}
}
