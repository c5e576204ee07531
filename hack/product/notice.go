package product

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/fairway-net/fairway/internal/image"
)

// licences maps Debian packages to SPDX expressions, from each package's copyright file. A package that is missing here
// gets a LicenseRef to that file.
var licences = map[string]string{
	"base-files":              "GPL-2.0-or-later",
	"ca-certificates":         "GPL-2.0-or-later AND MPL-2.0",
	"iptables":                "GPL-2.0-only AND GPL-2.0-or-later",
	"libbsd0":                 "BSD-3-Clause AND BSD-2-Clause AND ISC",
	"libc6":                   "LGPL-2.1-or-later",
	"libedit2":                "BSD-3-Clause",
	"libgmp10":                "LGPL-3.0-or-later OR GPL-2.0-or-later",
	"libip4tc2":               "GPL-2.0-only AND GPL-2.0-or-later",
	"libip6tc2":               "GPL-2.0-only AND GPL-2.0-or-later",
	"libjansson4":             "MIT",
	"libmd0":                  "BSD-3-Clause AND BSD-2-Clause AND ISC AND Beerware",
	"libmnl0":                 "LGPL-2.1-or-later",
	"libnetfilter-conntrack3": "GPL-2.0-or-later",
	"libnfnetlink0":           "GPL-2.0-or-later",
	"libnftables1":            "GPL-2.0-only AND GPL-2.0-or-later",
	"libnftnl11":              "GPL-2.0-only AND GPL-2.0-or-later",
	"libpcap0.8":              "BSD-3-Clause",
	"libtinfo6":               "X11 AND BSD-3-Clause",
	"libxtables12":            "GPL-2.0-only AND GPL-2.0-or-later",
	"netbase":                 "GPL-2.0-only",
	"nftables":                "GPL-2.0-only AND GPL-2.0-or-later",
}

func licence(name string) string {
	if l := licences[name]; l != "" {
		return l
	}
	return "LicenseRef-Debian-" + strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || r == '.' {
			return r
		}
		return '-'
	}, name)
}

// expression returns the licence of the whole image. The Go modules' licences are permissive, and the image contains
// them.
func expression(packages []image.Package) string {
	parts := []string{"Apache-2.0"}
	for _, p := range packages {
		l := licence(p.Name)
		if strings.Contains(l, " OR ") {
			l = "(" + l + ")"
		}
		parts = append(parts, strings.Split(l, " AND ")...)
	}
	slices.Sort(parts[1:])
	return strings.Join(slices.Compact(parts), " AND ")
}

// notice lists the programs in the image with their owners, licences and sources.
func notice(packages []image.Package) string {
	var b strings.Builder
	b.WriteString(`Fairway is licensed under the Apache License, Version 2.0 (/LICENSE).

The programs fairway and fairway-cni contain Go modules; their licences are below /usr/share/doc/fairway.

The image also contains programs and libraries of Debian. They are not part of Fairway: it starts nft and iptables as
processes of their own. Their licences are in /usr/share/doc/PACKAGE/copyright and /usr/share/common-licenses; their
sources, exactly those that they were built from, are at the addresses below.

`)
	for _, p := range packages {
		fmt.Fprintf(&b, "%s %s\n  %s\n  https://snapshot.debian.org/package/%s/%s/\n", p.Name, p.Version, licence(p.Name), p.Source, p.SourceVersion)
	}
	return b.String()
}

// moduleLicences adds the licence files of Go modules from the module cache below a directory.
func moduleLicences(t *image.Tree, below string, all []module) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOROOT").Output()
	dirs := strings.Fields(string(out))
	if err != nil || len(dirs) != 2 {
		return fmt.Errorf("find the licences of modules: go env: %w: %q", err, out)
	}
	for _, m := range all {
		dir := filepath.Join(dirs[0], cached(m.Path)+"@"+cached(m.Version))
		if m.Path == "stdlib" {
			dir = dirs[1]
		}
		found := 0
		for _, pattern := range []string{"LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "License*"} {
			files, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return fmt.Errorf("find the licence of %s: %w", m.Path, err)
			}
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					return fmt.Errorf("read the licence of %s: %w", m.Path, err)
				}
				t.File(below+"/"+m.Path+"/"+filepath.Base(f), 0o644, string(text))
				found++
			}
		}
		if found == 0 {
			return fmt.Errorf("module %s %s has no licence in %s [run `make deps`]", m.Path, m.Version, dir)
		}
	}
	return nil
}

// cached returns a path as the module cache spells it: "!" and a small letter for a capital one.
func cached(path string) string {
	var b strings.Builder
	for _, r := range path {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
