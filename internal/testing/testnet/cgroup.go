package testnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/netns"
)

// The names of the tests' cgroups begin with cgroupPrefix and the number of the process.
const cgroupPrefix = "fairway-test-"

// Cgroup gives the namespace its own cgroup and returns the cgroup's directory. From then on Do runs functions in the
// cgroup, with their sockets and programs, as in a pod. So the kernel's cgroup hooks can tell hosts apart. The cgroup
// is removed when the test ends. If the test was killed, the next test that makes a cgroup removes it.
func (n *Namespace) Cgroup() string {
	n.t.Helper()
	home, err := threadCgroup()
	if err == nil {
		err = removeDeadCgroups(home)
	}
	if err != nil {
		n.t.Fatalf("testnet: make a cgroup for %s: %v", n.Name, err)
	}
	n.CgroupIn(home)
	return n.cgroup
}

// CgroupIn is Cgroup with a given parent.
func (n *Namespace) CgroupIn(parent string) {
	n.t.Helper()
	n.cgroup = MakeCgroup(n.t, parent, n.Name)
}

// MakeCgroup makes a cgroup below a parent, and returns its directory.
func MakeCgroup(t testing.TB, parent, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp(parent, fmt.Sprintf("%s%d-%s-", cgroupPrefix, os.Getpid(), strings.NewReplacer("/", "-", ":", "-").Replace(name)))
	if err == nil { // threaded: threads of one process can be in different cgroups
		threaded(t, dir)
	}
	if err != nil {
		t.Fatalf("testnet: make a cgroup for %s: %v", name, err)
	}
	return dir
}

// MakeCgroupNamed is MakeCgroup for a name that programs look for.
func MakeCgroupNamed(t testing.TB, parent, name string) string {
	t.Helper()
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatalf("testnet: make the cgroup %s: %v", name, err)
	}
	threaded(t, dir)
	return dir
}

// threaded prepares a new cgroup for threads, and removes it when the test ends.
func threaded(t testing.TB, dir string) {
	t.Helper()
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("testnet: remove the cgroup %s: %v [does a program that Do started go on?]", dir, err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0o644); err != nil {
		t.Fatalf("testnet: prepare the cgroup %s: %v", dir, err)
	}
}

// doInCgroup is Do for a namespace with a cgroup.
func (n *Namespace) doInCgroup(f func() error) error {
	return netns.Do(n.fd, func() (err error) {
		home, err := threadCgroup()
		if err != nil {
			return err
		}
		if err := enterCgroup(n.cgroup); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, enterCgroup(home)) }()
		return f()
	})
}

// enterCgroup moves the calling thread.
func enterCgroup(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.threads"), []byte("0"), 0o644); err != nil {
		return fmt.Errorf("enter cgroup: %w", err)
	}
	return nil
}

// threadCgroup returns the directory of the calling thread's cgroup (version 2).
func threadCgroup() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	root := ""
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			root = f[1]
		}
	}
	all, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(all)) {
		if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok && root != "" {
			return filepath.Join(root, own), nil
		}
	}
	return "", errors.New("the kernel has no cgroup2, or it is not mounted [mount -t cgroup2 none /sys/fs/cgroup/unified]")
}

// removeDeadCgroups removes the cgroups of processes that have ended.
func removeDeadCgroups(home string) error {
	all, err := filepath.Glob(filepath.Join(home, cgroupPrefix+"*"))
	for _, dir := range all {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix), "-")
		if _, bad := strconv.Atoi(pid); bad != nil {
			continue
		}
		if _, gone := os.Stat("/proc/" + pid); errors.Is(gone, os.ErrNotExist) {
			below, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
			kids, _ := filepath.Glob(filepath.Join(dir, "*"))
			for _, one := range append(append(below, kids...), dir) {
				_ = os.Remove(one) // another test may have removed it; files cannot be removed
			}
		}
	}
	return err
}
