package product

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/image"
)

// An spdx is a document of SPDX 2.3 (spdx.github.io/spdx-spec/v2.3) with the fields that we write: the packages of the
// image. Its date is the date of the image's files, so the same packages give the same bytes.
type spdx struct {
	Version       string             `json:"spdxVersion"`
	ID            string             `json:"SPDXID"`
	DataLicense   string             `json:"dataLicense"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID               string    `json:"SPDXID"`
	Name             string    `json:"name"`
	Version          string    `json:"versionInfo"`
	Download         string    `json:"downloadLocation"`
	FilesAnalyzed    bool      `json:"filesAnalyzed"`
	LicenseConcluded string    `json:"licenseConcluded"`
	LicenseDeclared  string    `json:"licenseDeclared"`
	Copyright        string    `json:"copyrightText"`
	SourceInfo       string    `json:"sourceInfo,omitempty"`
	Refs             []spdxRef `json:"externalRefs"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const unknown = "NOASSERTION"

// sbom lists Debian packages and the modules of Go programs, under the name of the file that contains them.
func sbom(name, version string, packages []image.Package, modules []module, distribution string) ([]byte, error) {
	d := spdx{
		Version: "SPDX-2.3", ID: "SPDXRef-DOCUMENT", DataLicense: "CC0-1.0", Name: name,
		Creation: spdxCreation{Created: "1970-01-01T00:00:00Z", Creators: []string{"Tool: fairway-mkimage"}},
	}
	d.add("Fairway", "DESCRIBES", spdxPackage{Name: "fairway", Version: version, LicenseDeclared: "Apache-2.0"},
		"pkg:golang/github.com/fairway-net/fairway@"+version)
	for _, p := range packages {
		d.add("Debian-"+p.Name, "CONTAINS", spdxPackage{
			Name: p.Name, Version: p.Version, LicenseDeclared: licence(p.Name),
			SourceInfo: "built from: " + p.Source + " " + p.SourceVersion,
		}, fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=%s", p.Name, escape(p.Version), p.Architecture, distribution))
	}
	for _, m := range modules {
		d.add("Go-"+m.Path, "CONTAINS", spdxPackage{Name: m.Path, Version: m.Version, LicenseDeclared: unknown},
			"pkg:golang/"+m.Path+"@"+escape(m.Version))
	}
	text, err := json.Marshal(d.Packages)
	if err != nil {
		return nil, fmt.Errorf("write SBOM: %w", err)
	}
	d.Namespace = fmt.Sprintf("https://github.com/fairway-net/fairway/spdx/%x", sha256.Sum256(text))
	if text, err = json.MarshalIndent(d, "", " "); err != nil {
		return nil, fmt.Errorf("write SBOM: %w", err)
	}
	return append(text, '\n'), nil
}

// add adds a package. The document describes the first package, which contains the others.
func (d *spdx) add(id, relation string, p spdxPackage, purl string) {
	p.ID = "SPDXRef-" + strings.Map(func(r rune) rune { // the specification allows letters, digits, "." and "-"
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-') {
			return r
		}
		return '-'
	}, id)
	p.Download, p.LicenseConcluded, p.Copyright = unknown, unknown, unknown
	p.Refs = []spdxRef{{"PACKAGE-MANAGER", "purl", purl}}
	from := "SPDXRef-DOCUMENT"
	if len(d.Packages) > 0 {
		from = d.Packages[0].ID
	}
	d.Packages = append(d.Packages, p)
	d.Relationships = append(d.Relationships, spdxRelationship{from, relation, p.ID})
}

// escape writes a version into a package URL.
func escape(version string) string {
	return strings.NewReplacer("%", "%25", "+", "%2B", ":", "%3A", "~", "~").Replace(version)
}

// A module is a Go module in one of the image's programs.
type module struct{ Path, Version string }

// modules returns the modules of the programs and Go's library, each once.
func modules(programs ...*debug.BuildInfo) []module {
	var all []module
	for _, p := range programs {
		all = append(all, module{"stdlib", strings.TrimPrefix(p.GoVersion, "go")})
		for _, d := range p.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			all = append(all, module{d.Path, d.Version})
		}
	}
	slices.SortFunc(all, func(a, b module) int {
		if c := strings.Compare(a.Path, b.Path); c != 0 {
			return c
		}
		return strings.Compare(a.Version, b.Version)
	})
	return slices.Compact(all)
}
