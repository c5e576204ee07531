package image

import (
	"debug/elf"
	"fmt"
	"os"
	"path"
	"path/filepath"
)

// needed adds the libraries that a program or library of another root names, and theirs. Their interpreter may be of
// another architecture, so needed reads DT_NEEDED. It searches the directories that are built into Debian's dynamic linker
// and no others, because the image has no ld.so.cache. It refuses a file with a search path of its own.
func (t *Tree) needed(host string) error {
	dirs, err := filepath.Glob(t.rooted("/usr/lib/*-linux-gnu*"))
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for next := []string{host}; len(next) > 0; next = next[1:] {
		names, err := imports(t.rooted(next[0]))
		if err != nil {
			return err
		}
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			at, err := t.library(name, dirs)
			if err != nil {
				return fmt.Errorf("%s: %w", next[0], err)
			}
			next = append(next, t.Same(at))
		}
	}
	return t.err
}

// library returns the path in the root of a library. Directories are paths on this machine.
func (t *Tree) library(name string, dirs []string) (string, error) {
	for _, dir := range dirs {
		at := path.Join("/usr/lib", path.Base(dir), name)
		if _, err := os.Lstat(t.rooted(at)); err == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("%s: not found in %s", name, t.rooted("/usr/lib/*-linux-gnu"))
}

// imports returns the libraries that an ELF file names.
func imports(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		switch own, err := f.DynString(tag); {
		case err != nil:
			return nil, fmt.Errorf("%s: read %v: %w", file, tag, err)
		case len(own) > 0:
			return nil, fmt.Errorf("%s has a search path of its own: %v %q", file, tag, own)
		}
	}
	return f.ImportedLibraries()
}
