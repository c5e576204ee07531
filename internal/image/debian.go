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

// A Package is a Debian package with files in a tree.
type Package struct {
	Name, Version, Architecture string
	Source, SourceVersion       string // the source package
	Status                      string // the paragraph in dpkg's status file, which scanners read
}

// Packages returns the packages of the tree's files and the packages in more, by name. unowned are the tree's files from
// this machine that belong to no package. Packages ignores files that were copied under another name.
func (t *Tree) Packages(more ...string) (packages []Package, unowned []string, err error) {
	if t.err != nil {
		return nil, nil, t.err
	}
	var files, ask []string
	for _, name := range t.Files() {
		if at := "/" + name; t.entries[name].host == t.rooted(at) {
			files = append(files, at)
			// dpkg knows files by the path in their package, which is often older than the merge of /usr.
			ask = append(ask, at, strings.TrimPrefix(at, "/usr"))
		}
	}
	owners, err := t.owners(ask)
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
		p, err := t.describe(name)
		if err != nil {
			return nil, nil, err
		}
		packages = append(packages, p)
	}
	return packages, unowned, nil
}

// programLimit limits the time of a program that output runs.
const programLimit = time.Minute

// output returns the standard output of a program.
func output(name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), programLimit)
	defer cancel()
	return exec.CommandContext(ctx, name, args...).Output()
}

// dpkg asks the root's list of packages.
func (t *Tree) dpkg(args ...string) ([]byte, error) {
	return output("dpkg-query", append([]string{"--admindir=" + t.rooted("/var/lib/dpkg")}, args...)...)
}

// owners returns the package of each file, from dpkg. The name of a package with several architectures has one of them, as
// libc6:amd64.
func (t *Tree) owners(files []string) (map[string]string, error) {
	if len(files) == 0 {
		return nil, nil
	}
	out, err := t.dpkg(append([]string{"--search", "--"}, files...)...)
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) { // 1: some files have no owner
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

// fields is dpkg's format with the fields of a Package, one a line.
const fields = "${Package}\n${Version}\n${Architecture}\n${source:Package}\n${source:Version}\n"

// describe returns dpkg's description of a package.
func (t *Tree) describe(name string) (Package, error) {
	out, err := t.dpkg("--show", "--showformat="+fields, name)
	f := strings.Split(string(out), "\n")
	if err != nil || len(f) != 6 {
		return Package{}, fmt.Errorf("describe package %s: dpkg-query: %w: %q", name, err, out)
	}
	status, err := t.dpkg("--status", name)
	if err != nil {
		return Package{}, fmt.Errorf("describe package %s: dpkg-query: %w", name, err)
	}
	return Package{
		Name: f[0], Version: f[1], Architecture: f[2], Source: f[3], SourceVersion: f[4],
		Status: string(bytes.TrimSpace(status)) + "\n",
	}, nil
}

// PackageStatus adds the packages to the tree in dpkg's format, for programs that look for known vulnerabilities. It also
// adds the packages' licences that this machine has.
func (t *Tree) PackageStatus(packages []Package) {
	var status strings.Builder
	for _, p := range packages {
		status.WriteString(p.Status + "\n")
		t.IfThere(path.Join("/usr/share/doc", p.Name, "copyright"))
	}
	t.File("/var/lib/dpkg/status", 0o644, status.String())
	for _, l := range []string{"Apache-2.0", "GPL-2", "GPL-3", "LGPL-2", "LGPL-2.1", "LGPL-3", "MPL-2.0"} {
		t.IfThere("/usr/share/common-licenses/" + l)
	}
	t.IfThere("/etc/os-release") // the distribution of the packages
}

// IfThere is Same for a file that a machine may lack. It returns whether the file is there.
func (t *Tree) IfThere(file string) bool {
	_, err := os.Lstat(t.rooted(file))
	if err == nil {
		t.Same(file)
	}
	return err == nil
}
