package main

import (
	"fmt"
	"regexp"
	"strings"
)

// section returns the text of a version in the changelog, without its heading. A version before a release, as v1.2.0-rc.1,
// has the section of the release. A release's section must not say that it is unreleased.
func section(changelog, version string) (string, error) {
	base, suffix, _ := strings.Cut(version, "-")
	_, after, found := strings.Cut("\n"+changelog, "\n## "+base)
	heading, text, _ := strings.Cut(after, "\n")
	if !found || heading != "" && !strings.HasPrefix(heading, " ") {
		return "", fmt.Errorf("CHANGELOG.md has no section %q [write what %s changes]", "## "+base, base)
	}
	if suffix == "" && strings.Contains(heading, "unreleased") {
		return "", fmt.Errorf("CHANGELOG.md says %q [write the release's date there, or make a version as %s-rc.1]", base+heading, base)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return strings.TrimSpace(text), nil
}

// relative is the beginning of a link to a file of the repository.
var relative = regexp.MustCompile(`\]\(([a-zA-Z0-9./_-]+)(#[^)]*)?\)`)

// notes returns the page of a release: what is new, the image, and how to verify.
func notes(section, version, image, digest string) string {
	at := version
	if strings.Contains(version, "-") {
		at = "main"
	}
	link := "](https://github.com/fairway-net/fairway/blob/" + at + "/$1$2)"
	return fmt.Sprintf(`# Fairway %s

%s

## Image

%s (amd64, arm64)

    %s

## Verify

    sha256sum --check SHA256SUMS

%s
`, version, relative.ReplaceAllString(section, link), image, digest,
		relative.ReplaceAllString("[Releases](docs/releases.md) says how to compare a registry's image, and how to build the same bytes.", link))
}
