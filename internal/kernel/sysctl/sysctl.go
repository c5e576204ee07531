// Package sysctl writes kernel parameters of the network, also from a container that is not
// privileged.
//
//	/proc/sys/net/NAME ── read-only? ──→ /host/proc/sys/net/NAME
//
// Runtimes mount /proc/sys read-only into every container that is not privileged. The kernel
// itself asks for no more than CAP_NET_ADMIN in the network namespace of the process that
// opens a file below /proc/sys/net, wherever that directory is mounted. So a container to which
// the host's /proc/sys/net is mounted at another path needs no privilege besides.
package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Host is where deploy/ mounts the node's /proc/sys/net, writable, for the agents that have to
// write there.
const Host = "/host/proc/sys/net"

// Advice ends an error of WriteFile.
const Advice = "[mount the host's /proc/sys/net at " + Host + ", writable, as the components in deploy/ do, or set it on the host]"

const below = "/proc/sys/net/"

// WriteFile writes a parameter, a file below /proc/sys/net. If that is read-only, it writes the
// file of the same name below Host.
func WriteFile(path, value string) error {
	err := os.WriteFile(path, []byte(value), 0)
	if !errors.Is(err, syscall.EROFS) {
		return err
	}
	root, name, ok := strings.Cut(path, below) // root is "" but in tests
	if !ok {
		return err
	}
	other := os.WriteFile(root+Host+"/"+name, []byte(value), 0)
	if errors.Is(other, fs.ErrNotExist) {
		return err // the first error names the file that people know
	}
	return other
}
