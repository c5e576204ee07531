package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies returns the mount point of every cgroup hierarchy. unified is the mount point of the version 2 hierarchy,
// or "" if there is none.
func hierarchies() (all []string, unified string, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &st); err != nil {
		return nil, "", fmt.Errorf("find cgroups: %w", err)
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{cgroupRoot}, cgroupRoot, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, "", fmt.Errorf("find cgroups: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(cgroupRoot, e.Name())
		if e.Type()&fs.ModeSymlink != 0 || unix.Statfs(dir, &st) != nil {
			continue // "cpu" may be a link to "cpu,cpuacct"
		}
		switch st.Type {
		case unix.CGROUP_SUPER_MAGIC:
			all = append(all, dir)
		case unix.CGROUP2_SUPER_MAGIC:
			all = append(all, dir)
			unified = dir
		}
	}
	return all, unified, nil
}

// enterCgroup moves the calling process and its future children into a leaf of the node's part of the version 2
// hierarchy. Programs attached to that part then see only this node's traffic. It must be a leaf, because a cgroup
// whose children have limits may not hold a process itself.
func (c Config) enterCgroup() error {
	_, unified, err := hierarchies()
	if err != nil || unified == "" {
		return err
	}
	leaf := filepath.Join(unified, c.Cgroup, "host")
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("enter cgroup: %w", err)
	}
	return nil
}

// createCgroups makes the parent of the pods' cgroups in every hierarchy, with the controllers that a kubelet needs.
func (c Config) createCgroups() error {
	all, unified, err := hierarchies()
	if err != nil {
		return err
	}
	for _, parent := range all {
		for _, name := range strings.Split(strings.Trim(c.Cgroup, "/"), "/") {
			child := filepath.Join(parent, name)
			if err := os.MkdirAll(child, 0o755); err != nil {
				return fmt.Errorf("create cgroup: %w", err)
			}
			if unified == cgroupRoot {
				err = delegate(parent)
			} else {
				err = fillCpuset(parent, child)
			}
			if err != nil {
				return err
			}
			parent = child
		}
	}
	return nil
}

// delegate enables the kubelet's controllers for the children of a version 2 cgroup.
func delegate(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read cgroup controllers: %w", err)
	}
	for _, name := range strings.Fields(string(available)) {
		if !slices.Contains([]string{"cpu", "cpuset", "hugetlb", "memory", "pids"}, name) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
			return fmt.Errorf("delegate cgroup controller %s: %w", name, err)
		}
	}
	return nil
}

// fillCpuset gives a version 1 cpuset its parent's processors and memory. A cpuset without them accepts no process, and
// runc fills only its own cgroups.
func fillCpuset(parent, child string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the directory belongs to another controller
		}
		if err != nil {
			return fmt.Errorf("read cpuset: %w", err)
		}
		if err := os.WriteFile(filepath.Join(child, file), value, 0); err != nil {
			return fmt.Errorf("fill cpuset: %w", err)
		}
	}
	return nil
}

// RemoveCgroups removes a cgroup and its children from every hierarchy. The caller must have killed the processes in
// it. The kernel may still be removing them, so RemoveCgroups retries for five seconds.
func RemoveCgroups(cgroup string) error {
	all, _, err := hierarchies()
	if err != nil {
		return err
	}
	for _, dir := range all {
		if err := removeTree(filepath.Join(dir, cgroup)); err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	return nil
}

// removeTree removes directories bottom up. The files in them belong to the kernel and go with their directory.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	const pause = 10 * time.Millisecond
	for range 5 * time.Second / pause {
		if err = unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(pause)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
