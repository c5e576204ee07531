package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"
)

// A Package is a Debian package of this machine of which a tree has files.
type Package struct {
	Name, Version, Architecture string
	Source, SourceVersion       string // what it was built from
	Status                      string // its paragraph in dpkg's status file, which scanners read
}

// Packages returns the packages that the tree's files come from, by name, with those named in
// more, and the tree's files from this machine that belong to no package. Files that were
// copied under another name are not looked for.
func (t *Tree) Packages(more ...string) (packages []Package, unowned []string, err error) {
	if t.err != nil {
		return nil, nil, t.err
	}
	var files, ask []string
	for _, name := range t.Files() {
		if at := "/" + name; t.entries[name].host == at {
			files = append(files, at)
			// dpkg knows files by the path that their package has: often one of before /usr was merged.
			ask = append(ask, at, strings.TrimPrefix(at, "/usr"))
		}
	}
	owners, err := owners(ask)
	if err != nil {
		return nil, nil, err
	}
	names := slices.Clone(more)
	for _, f := range files {
		owner := owners[f]
		if owner == "" {
			owner = owners[strings.TrimPrefix(f, "/usr")]
		}
		if owner == "" {
			unowned = append(unowned, f)
			continue
		}
		names = append(names, owner)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		p, err := describe(name)
		if err != nil {
			return nil, nil, err
		}
		packages = append(packages, p)
	}
	return packages, unowned, nil
}

// programLimit is how long a program that is asked may take.
const programLimit = time.Minute

// output returns what a program prints.
func output(name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), programLimit)
	defer cancel()
	return exec.CommandContext(ctx, name, args...).Output()
}

// owners asks dpkg whose the files are. The names of packages that exist for several
// architectures have one, as libc6:amd64.
func owners(files []string) (map[string]string, error) {
	if len(files) == 0 {
		return nil, nil
	}
	out, err := output("dpkg-query", append([]string{"--search", "--"}, files...)...)
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) { // 1: some have no owner
		return nil, fmt.Errorf("find the packages of files: dpkg-query: %w", err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "diversion by ") {
			continue
		}
		if owner, file, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); ok {
			first, _, _ := strings.Cut(owner, ", ")
			found[file] = first
		}
	}
	return found, nil
}

// fields are what a Package is made of, one a line; dpkg fills in the source where it is the package itself.
const fields = "${Package}\n${Version}\n${Architecture}\n${source:Package}\n${source:Version}\n"

// describe reads what dpkg knows of a package.
func describe(name string) (Package, error) {
	out, err := output("dpkg-query", "--show", "--showformat="+fields, name)
	f := strings.Split(string(out), "\n")
	if err != nil || len(f) != 6 {
		return Package{}, fmt.Errorf("describe package %s: dpkg-query: %w: %q", name, err, out)
	}
	status, err := output("dpkg-query", "--status", name)
	if err != nil {
		return Package{}, fmt.Errorf("describe package %s: dpkg-query: %w", name, err)
	}
	return Package{
		Name: f[0], Version: f[1], Architecture: f[2], Source: f[3], SourceVersion: f[4],
		Status: string(bytes.TrimSpace(status)) + "\n",
	}, nil
}

// PackageStatus adds the packages to the tree as dpkg does, for programs that look for known
// vulnerabilities, with each one's licence and the licences that it refers to, where this
// machine has them.
func (t *Tree) PackageStatus(packages []Package) {
	var status strings.Builder
	for _, p := range packages {
		status.WriteString(p.Status + "\n")
		t.ifThere(path.Join("/usr/share/doc", p.Name, "copyright"))
	}
	t.File("/var/lib/dpkg/status", 0o644, status.String())
	for _, l := range []string{"Apache-2.0", "GPL-2", "GPL-3", "LGPL-2", "LGPL-2.1", "LGPL-3", "MPL-2.0"} {
		t.ifThere("/usr/share/common-licenses/" + l)
	}
	t.ifThere("/etc/os-release") // which distribution's packages they are
}

// ifThere is Same for a file that a machine may lack.
func (t *Tree) ifThere(file string) {
	if _, err := os.Stat(file); err == nil {
		t.Same(file)
	}
}
