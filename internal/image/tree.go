package image

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
)

// maxLinks bounds how many symbolic links one path may pass through, like the kernel's ELOOP limit.
const maxLinks = 40

// A Tree is the file system of one layer under construction. The zero value is an empty tree.
//
// Its methods do not return errors, so a caller can write a tree as a plain list of calls. Layer returns the first error.
// After an error the methods do nothing.
type Tree struct {
	// Root is the directory with the files that Same, Program, Plugin, Find and Packages look for. "" is this machine's /.
	// The files of another root may be of another architecture, because no program of them runs.
	Root string

	entries map[string]entry // by clean path without the leading slash
	err     error
}

// entry is one file, link or directory of a tree.
type entry struct {
	mode   fs.FileMode // type and permissions
	data   []byte      // content of a regular file whose host is ""
	host   string      // the file with the content of a regular file
	target string      // of a symbolic link
}

// Dir adds an empty directory. Missing parents appear with mode 0755.
func (t *Tree) Dir(name string, perm fs.FileMode) { t.add(name, entry{mode: fs.ModeDir | perm}) }

// File adds a regular file with the given content.
func (t *Tree) File(name string, perm fs.FileMode, data string) {
	t.add(name, entry{mode: perm, data: []byte(data)})
}

// Copy adds the host's regular file (links followed) under another name. All users may read it, and may execute it if any
// user of the host may, so the umask at the file's creation does not change the image.
func (t *Tree) Copy(name, host string) {
	if t.err != nil {
		return
	}
	info, err := os.Stat(host)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		t.fail(fmt.Errorf("copy %s: %w", host, err))
		return
	}
	perm := fs.FileMode(0o644)
	if info.Mode()&0o111 != 0 {
		perm = 0o755
	}
	t.add(name, entry{mode: perm | info.Mode()&(fs.ModeSetuid|fs.ModeSetgid), host: host})
}

// Link adds a symbolic link.
func (t *Tree) Link(name, target string) {
	t.add(name, entry{mode: fs.ModeSymlink | fs.ModePerm, target: target})
}

// rooted returns the path on this machine of a path in the tree's root.
func (t *Tree) rooted(name string) string { return path.Join(cmp.Or(t.Root, "/"), name) }

// Same adds the host's file at its path on the host. Symbolic links on the way stay links: /bin/nc becomes bin -> usr/bin,
// usr/bin/nc -> /etc/alternatives/nc, and so on to the program. Same returns the path of the file behind all links, or ""
// after an error.
func (t *Tree) Same(host string) string {
	if t.err != nil {
		return ""
	}
	final, err := t.same(host)
	if err != nil {
		t.fail(fmt.Errorf("copy %s: %w", host, err))
		return ""
	}
	return final
}

func (t *Tree) same(host string) (string, error) {
	rest := strings.Split(strings.TrimPrefix(path.Clean(host), "/"), "/")
	done := "/"
	for links := 0; len(rest) > 0; {
		here := path.Join(done, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(t.rooted(here))
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			done = here
			continue
		}
		if links++; links > maxLinks {
			return "", errors.New("too many symbolic links")
		}
		target, err := os.Readlink(t.rooted(here))
		if err != nil {
			return "", err
		}
		t.Link(here, target)
		if !path.IsAbs(target) {
			target = path.Join(done, target)
		}
		rest = append(strings.Split(strings.TrimPrefix(path.Clean(target), "/"), "/"), rest...)
		done = "/"
	}
	t.Copy(done, t.rooted(done))
	return done, t.err
}

// add puts one entry into the tree. An equal entry under the same name is harmless, a different one is an error.
func (t *Tree) add(name string, e entry) {
	if t.err != nil {
		return
	}
	if t.entries == nil {
		t.entries = make(map[string]entry)
	}
	at, err := t.resolve(name)
	if err != nil {
		t.fail(fmt.Errorf("add %s: %w", name, err))
		return
	}
	if old, ok := t.entries[at]; ok && !old.equal(e) {
		if !old.mode.IsDir() || !e.mode.IsDir() {
			t.fail(fmt.Errorf("add %s: already there as a different file", name))
			return
		}
	}
	t.entries[at] = e
}

// resolve returns the key of name. It creates missing parents, and follows parents that are links: some programs refuse an
// archive entry below a link, and others write through the link.
func (t *Tree) resolve(name string) (string, error) {
	rest := strings.Split(strings.TrimPrefix(path.Clean("/"+name), "/"), "/")
	done := ""
	for links := 0; len(rest) > 1; {
		here := path.Join(done, rest[0])
		rest = rest[1:]
		e, ok := t.entries[here]
		switch {
		case !ok:
			t.entries[here] = entry{mode: fs.ModeDir | 0o755}
			done = here
		case e.mode.IsDir():
			done = here
		case e.target != "":
			if links++; links > maxLinks {
				return "", errors.New("too many symbolic links")
			}
			to := e.target
			if !path.IsAbs(to) {
				to = path.Join("/", done, to)
			}
			rest = append(strings.Split(strings.TrimPrefix(path.Clean(to), "/"), "/"), rest...)
			done = ""
		default:
			return "", fmt.Errorf("/%s is a file, not a directory", here)
		}
	}
	if rest[0] == "" {
		return "", errors.New("the root directory cannot be replaced")
	}
	return path.Join(done, rest[0]), nil
}

func (e entry) equal(o entry) bool {
	return e.mode == o.mode && e.host == o.host && e.target == o.target && string(e.data) == string(o.data)
}

// Rewrite replaces the content of a file by the result of edit. The name must be one of Files.
func (t *Tree) Rewrite(name string, edit func([]byte) ([]byte, error)) error {
	e, ok := t.entries[name]
	if !ok || !e.mode.IsRegular() {
		return fmt.Errorf("rewrite %s: no such file in the tree", name)
	}
	data, err := e.read()
	if err == nil {
		data, err = edit(data)
	}
	if err != nil {
		return fmt.Errorf("rewrite %s: %w", name, err)
	}
	t.entries[name] = entry{mode: e.mode, data: data}
	return nil
}

// Files returns the names of the regular files, in order and without the leading slash.
func (t *Tree) Files() []string {
	var files []string
	for _, name := range t.names() {
		if t.entries[name].mode.IsRegular() {
			files = append(files, name)
		}
	}
	return files
}

// read returns the content of a regular file.
func (e entry) read() ([]byte, error) {
	if e.host == "" {
		return e.data, nil
	}
	return os.ReadFile(e.host)
}

// names returns the keys of the tree in order. A directory comes before its content.
func (t *Tree) names() []string {
	names := make([]string, 0, len(t.entries))
	for name := range t.entries {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (t *Tree) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}
