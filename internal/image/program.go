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

// Program adds a program of this machine at its own path, links kept, with its interpreter and all libraries it needs.
// A static program needs nothing more.
func (t *Tree) Program(host string) {
	final := t.Same(host)
	if t.err != nil {
		return
	}
	interp, err := interpreter(final)
	if err == nil && interp != "" {
		err = t.libraries(final, interp)
	}
	if err != nil {
		t.fail(fmt.Errorf("libraries of %s: %w", host, err))
	}
}

// Plugin adds a library that a program loads while it runs, with all libraries it needs. It names no interpreter
// itself: the program's will load it.
func (t *Tree) Plugin(host, program string) {
	final := t.Same(host)
	if t.err != nil {
		return
	}
	interp, err := interpreter(program)
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

// Find is exec.LookPath that also knows the directories of system programs, which are not in everybody's PATH.
func Find(program string) (string, error) {
	if at, err := exec.LookPath(program); err == nil {
		return at, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if at, err := exec.LookPath(path.Join(dir, program)); err == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("%s: %w", program, exec.ErrNotFound)
}

// libraries adds an interpreter and what it would load for a program or library.
//
// The program's own dynamic linker is asked, as ldd does. Reading DT_NEEDED ourselves would mean to repeat its
// search (RPATH, RUNPATH, $ORIGIN, the cache, the capability directories), and to be wrong one day; the linker that
// will stand in the image is the only one that cannot disagree with itself. It is the one that the file names
// (PT_INTERP), not the ldd of the machine, and --list runs no code of the program.
func (t *Tree) libraries(host, interp string) error {
	t.Same(interp)
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

// reachable makes a library that lies outside the linker's built-in directories loadable without the host's
// ld.so.cache, which the image does not have: by a link in the directory of the C library, always a built-in one.
// Programs that find it by RUNPATH find it where it was.
func (t *Tree) reachable(lib library, all []library) {
	for _, c := range all {
		if strings.HasPrefix(c.name, "libc.so.") && path.Dir(c.path) != path.Dir(lib.path) {
			t.Link(path.Join(path.Dir(c.path), lib.name), lib.path)
		}
	}
}

// interpreter returns the PT_INTERP of a program. It is "" for what is not ELF (a script: its interpreter is the
// caller's affair) and for static programs.
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

// library is one line of the linker's list: the name that is asked for, and the file that answers.
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
