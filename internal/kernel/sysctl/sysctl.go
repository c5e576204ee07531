// Package sysctl writes kernel parameters of the network, also from a container without privileges.
//
//	/proc/sys/net/NAME ── read-only? ──→ /host/proc/sys/net/NAME
//
// Container runtimes mount /proc/sys read-only, except into privileged containers. The kernel itself requires only
// CAP_NET_ADMIN in the network namespace of the process, wherever the directory is mounted. So deploy/ mounts the
// host's /proc/sys/net at another path, and the container needs no further privilege.
package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Host is the path at which deploy/ mounts the node's /proc/sys/net, writable.
const Host = "/host/proc/sys/net"

// Advice is the advice for an error of WriteFile.
const Advice = "[mount the host's /proc/sys/net at " + Host + ", writable, as the components in deploy/ do, or set it on the host]"

const below = "/proc/sys/net/"

// WriteFile writes a parameter: a file in /proc/sys/net. If this directory is mounted read-only, it writes the file of
// the same name in Host.
func WriteFile(path, value string) error {
	err := os.WriteFile(path, []byte(value), 0)
	if !errors.Is(err, syscall.EROFS) {
		return err
	}
	root, name, ok := strings.Cut(path, below) // root is "", except in tests
	if !ok {
		return err
	}
	other := os.WriteFile(root+Host+"/"+name, []byte(value), 0)
	if errors.Is(other, fs.ErrNotExist) {
		return err // administrators know the file in the first error
	}
	return other
}
