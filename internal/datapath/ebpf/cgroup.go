package ebpf

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// hostCgroup is where the manifests mount the node's /sys/fs/cgroup. The container's own mount may show only a part.
const hostCgroup = "/host/sys/fs/cgroup"

// podsCgroups are the names of the kubelet's cgroup above all pods.
var podsCgroups = []string{"kubepods", "kubepods.slice"}

// nodeCgroup returns the cgroup of the node: the one that holds the pods' cgroup of this process, or else the root of
// the hierarchy. Several nodes may share one kernel, and each translates its own sockets only.
func nodeCgroup() (string, error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	root := cgroupRoot(mounts)
	if root == "" {
		return "", errors.New("cgroup2 is not mounted")
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, abovePods(string(own)))
	if _, err := inode(dir); err != nil { // the kernel gave the path from another root
		return root, nil
	}
	return dir, nil
}

// cgroupRoot returns the mount point of cgroup version 2, preferably the node's. It returns "" if there is none.
func cgroupRoot(mounts io.Reader) (root string) {
	for s := bufio.NewScanner(mounts); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 3 || fields[2] != "cgroup2" {
			continue
		}
		if fields[1] == hostCgroup || strings.HasPrefix(fields[1], hostCgroup+"/") {
			return fields[1]
		}
		if root == "" {
			root = fields[1]
		}
	}
	return root
}

// abovePods returns the part of a process's cgroup above the pods' cgroup, from the text of /proc/PID/cgroup. It returns
// "/" if the process is in no pod.
func abovePods(own string) string {
	for line := range strings.Lines(own) {
		path, unified := strings.CutPrefix(strings.TrimSpace(line), "0::")
		names := strings.Split(path, "/")
		at := slices.IndexFunc(names, func(name string) bool { return slices.Contains(podsCgroups, name) })
		if unified && at > 0 {
			return "/" + filepath.Join(names[:at]...)
		}
	}
	return "/"
}

// inode returns a cgroup's ID, which is the inode of its directory.
func inode(dir string) (uint64, error) {
	var s syscall.Stat_t
	if err := syscall.Stat(dir, &s); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	return s.Ino, nil
}

// level returns the depth of a cgroup below the root of the hierarchy, which has the inode 1.
func level(dir string) (n uint32) {
	for id, err := inode(dir); err == nil && id != 1 && dir != "/"; id, err = inode(dir) {
		n, dir = n+1, filepath.Dir(dir)
	}
	return n
}
