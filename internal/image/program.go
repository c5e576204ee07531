package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"strings"
)

// Program adds a program of this machine at its own path, with its links, its interpreter and all of its libraries. A
// static program has no interpreter and no libraries.
func (t *Tree) Program(host string) {
	final := t.Same(host)
	if t.err != nil {
		return
	}
	interp, err := interpreter(t.rooted(final))
	if err == nil && interp != "" {
		err = t.libraries(final, interp)
	}
	if err != nil {
		t.fail(fmt.Errorf("libraries of %s: %w", host, err))
	}
}

// Plugin adds a library that a program loads at run time, with the library's own libraries. The program's interpreter loads
// the library, which names none itself.
func (t *Tree) Plugin(host, program string) {
	final := t.Same(host)
	if t.err != nil {
		return
	}
	interp, err := interpreter(t.rooted(program))
	switch {
	case err == nil && interp == "":
		err = fmt.Errorf("%s is static and loads nothing", program)
	case err == nil:
		err = t.libraries(final, interp)
	}
	if err != nil {
		t.fail(fmt.Errorf("libraries of %s: %w", host, err))
	}
}

// Find is like exec.LookPath, and also searches the directories of system programs, which not every PATH has.
func Find(program string) (string, error) {
	if at, err := exec.LookPath(program); err == nil {
		return at, nil
	}
	var this Tree
	return this.Find(program)
}

// Find returns the path of a program in the root's directories of programs.
func (t *Tree) Find(program string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		at := path.Join(dir, program)
		if _, err := exec.LookPath(t.rooted(at)); err == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("%s: %w", program, exec.ErrNotFound)
}

// libraries adds an interpreter and all libraries that it loads for a program or library.
//
// On this machine libraries runs the program's own dynamic linker (PT_INTERP), as ldd does: --list runs no code of the program. Reading
// DT_NEEDED instead would repeat the linker's search (RPATH, RUNPATH, $ORIGIN, the cache, the capability directories), and
// might differ from it. The same linker is in the image, so it finds the same files.
func (t *Tree) libraries(host, interp string) error {
	t.Same(interp)
	if t.Root != "" {
		return t.needed(host)
	}
	out, err := output(interp, "--list", host)
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return fmt.Errorf("%s --list: %w: %s", interp, err, bytes.TrimSpace(exit.Stderr))
		}
		return fmt.Errorf("%s --list: %w", interp, err)
	}
	needed, err := parseList(string(out))
	if err != nil {
		return err
	}
	for _, lib := range needed {
		t.Same(lib.path)
		t.reachable(lib, needed)
	}
	return t.err
}

// reachable adds a link to a library outside the linker's built-in directories, because the image does not have the host's
// ld.so.cache. The link is in the directory of the C library, which is always built in. A RUNPATH still leads to the
// library's own path.
func (t *Tree) reachable(lib library, all []library) {
	for _, c := range all {
		if strings.HasPrefix(c.name, "libc.so.") && path.Dir(c.path) != path.Dir(lib.path) {
			t.Link(path.Join(path.Dir(c.path), lib.name), lib.path)
		}
	}
}

// interpreter returns the PT_INTERP of a program; "" for static programs and for files that are not ELF. The caller adds
// the interpreter of a script.
func interpreter(host string) (string, error) {
	f, err := elf.Open(host)
	if err != nil {
		var format *elf.FormatError
		if errors.As(err, &format) {
			return "", nil
		}
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		buf := make([]byte, p.Filesz)
		if _, err := p.ReadAt(buf, 0); err != nil {
			return "", fmt.Errorf("read PT_INTERP: %w", err)
		}
		return string(bytes.TrimRight(buf, "\x00")), nil
	}
	return "", nil
}

// library is one line of the linker's list: a name, and the file that the linker found.
type library struct{ name, path string }

// parseList reads the output of `ld.so --list`.
func parseList(out string) ([]library, error) {
	var libs []library
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		name, to, arrow := strings.Cut(strings.TrimSpace(line), " => ")
		if !arrow {
			continue // the vdso, the linker itself, or "statically linked"
		}
		at, _, _ := strings.Cut(to, " (")
		if at == "not found" {
			return nil, fmt.Errorf("%s: not found on this machine", name)
		}
		libs = append(libs, library{name: path.Base(name), path: at})
	}
	return libs, nil
}
