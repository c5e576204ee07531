package netns

import (
	"fmt"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Files are the places where programs keep files of network namespaces: processes, and the mounts of `ip netns` and of
// container runtimes.
var Files = []string{"/proc/[0-9]*/ns/net", "/run/netns/*", "/var/run/docker/netns/*"}

// A Peer is a network namespace to which a link of the present namespace leads: a pod, seen from its node.
type Peer struct {
	File  string // a file by which the namespace can be entered
	Inode uint64
	ID    int // the namespace's number in the present one, as `ip link` shows it: link-netnsid
}

// Peers returns the namespaces that the present namespace has a number for. files are patterns, usually Files. Several
// files of one namespace count once. A container without the host's processes and mounts finds none.
func Peers(files []string) (peers []Peer, err error) {
	seen := map[uint64]bool{}
	for _, pattern := range files {
		all, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("find network namespaces: %w", err)
		}
		for _, file := range all {
			inode, err := Inode(file)
			if err != nil || seen[inode] { // an error means that the process has ended, or belongs to another user
				continue
			}
			seen[inode] = true
			if id, ok := peerID(file); ok {
				peers = append(peers, Peer{file, inode, id})
			}
		}
	}
	return peers, nil
}

// Inode returns the number of the inode of a namespace's file, which identifies the namespace.
func Inode(file string) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Stat(file, &s); err != nil {
		return 0, fmt.Errorf("look at %s: %w", file, err)
	}
	return s.Ino, nil
}

func peerID(file string) (id int, ok bool) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	id, err = netlink.GetNetNsIdByFd(fd)
	return id, err == nil && id >= 0
}
