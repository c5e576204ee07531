package testnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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
	dir := filepath.Join(home, fmt.Sprintf("%s%d-%s", cgroupPrefix, os.Getpid(), n.Name))
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil { // threaded: threads of one process can be in different cgroups
		n.t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				n.t.Errorf("testnet: remove the cgroup of %s: %v [does a program that Do started go on?]", n.Name, err)
			}
		})
		err = os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0o644)
	}
	if err != nil {
		n.t.Fatalf("testnet: make a cgroup for %s: %v", n.Name, err)
	}
	n.cgroup = dir
	return dir
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
			_ = os.Remove(dir) // another test may have removed it
		}
	}
	return err
}
