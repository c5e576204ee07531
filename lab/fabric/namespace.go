package fabric

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// The namespaces that are not nodes. A node's namespace has the node's name.
const (
	Switch       = "fabric"
	ControlPlane = "control-plane"
	Client       = "client"
)

// A Fabric is the set of a lab's network namespaces. A bind mount on a file in Dir keeps each namespace alive.
type Fabric struct {
	Dir string // an absolute path; created if missing
}

// Path returns the file that holds the namespace name.
func (f Fabric) Path(name string) string { return filepath.Join(f.Dir, name) }

// do runs fn on a thread that no other goroutine will ever use. The thread stays locked, so the runtime ends it
// together with the goroutine. Changes that fn makes to the thread's namespaces end with the thread.
func do(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- fn()
	}()
	return <-done
}

// Do runs fn in the network namespace name. Sockets and processes that fn starts belong to that namespace permanently.
// fn must stay on its goroutine.
func (f Fabric) Do(name string, fn func() error) error {
	return do(func() error {
		ns, err := os.Open(f.Path(name))
		if err != nil {
			return fmt.Errorf("open network namespace: %w", err)
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", name, err)
		}
		return fn()
	})
}

// create makes the network namespace name, with its loopback down.
func (f Fabric) create(name string) error {
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return fmt.Errorf("create namespace directory: %w", err)
	}
	file, err := os.OpenFile(f.Path(name), os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return fmt.Errorf("create namespace file: %w", err)
	}
	file.Close()
	return do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w [needs a kernel with CONFIG_NET_NS]", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", f.Path(name), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hold network namespace %s: %w", name, err)
		}
		return nil
	})
}

// Inodes maps the inode of every namespace to its name. The inode identifies the namespace of a process (readlink
// /proc/PID/ns/net).
func (f Fabric) Inodes() (map[uint64]string, error) {
	names, err := f.names()
	if err != nil {
		return nil, err
	}
	inodes := make(map[uint64]string, len(names))
	for _, name := range names {
		var st unix.Statfs_t
		if unix.Statfs(f.Path(name), &st) != nil || st.Type != unix.NSFS_MAGIC {
			continue // a file without its mount has an inode of the disk, not of a namespace
		}
		var file unix.Stat_t
		if err := unix.Stat(f.Path(name), &file); err != nil {
			return nil, fmt.Errorf("stat namespace %s: %w", name, err)
		}
		inodes[file.Ino] = name
	}
	return inodes, nil
}

func (f Fabric) names() ([]string, error) {
	entries, err := os.ReadDir(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// Delete releases every namespace. The kernel removes a namespace with its links and rules when its last process has
// ended.
func (f Fabric) Delete() error {
	names, err := f.names()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, f.Release(name))
	}
	return errors.Join(errs...)
}

// Detach unmounts the file system at a path. A path without a mount is no error. Another process may be removing a lab,
// and removing the files also removes the mounts on them from all mount namespaces.
func Detach(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

// Release unmounts one namespace and removes its file. A missing namespace is no error.
func (f Fabric) Release(name string) error {
	if err := Detach(f.Path(name)); err != nil {
		return err
	}
	if err := os.Remove(f.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace file: %w", err)
	}
	return nil
}
