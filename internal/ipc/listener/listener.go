// Package listener says which process listens on a port of this network namespace, and who is at
// the other end of a Unix socket, and limits how many connections a server keeps open for each client.
//
//	port ─→ net/tcp, net/tcp6: the socket's inode ─→ /proc/PID/fd: who has it open
//
// It hides the texts of /proc. It promises to say less rather than something wrong: in a
// container that does not see the other process, or without rights to look at it, the port is
// in use by an unknown process.
package listener

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Process has a socket open. The zero value is one that is not known.
type Process struct {
	ID   int
	Name string
}

// String returns "kube-proxy (process 123)".
func (p Process) String() string {
	if p.ID == 0 {
		return "a process that is not visible from here"
	}
	return fmt.Sprintf("%s (process %d)", p.Name, p.ID)
}

// Find returns who listens on a TCP port, at whatever address; listens is false if nobody
// does, or if it cannot be read.
func Find(port uint16) (p Process, listens bool) { return find("/proc", port) }

func find(proc string, port uint16) (p Process, listens bool) {
	for _, family := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(proc, "thread-self", "net", family))
		if err != nil {
			continue
		}
		if inode, ok := inodeOf(string(text), port); ok {
			return holder(proc, inode), true
		}
	}
	return Process{}, false
}

// inodeOf returns the inode of the socket that listens on a port, from the text of
// /proc/net/tcp: "  0: 00000000:2810 00000000:0000 0A … inode".
func inodeOf(text string, port uint16) (inode string, ok bool) {
	const listen = "0A"
	want := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && f[3] == listen && strings.HasSuffix(f[1], want) {
			return f[9], true
		}
	}
	return "", false
}

// holder returns a process that has the socket of an inode open.
func holder(proc, inode string) Process {
	all, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return Process{}
	}
	for _, fd := range all {
		to, err := os.Readlink(fd)
		if errors.Is(err, os.ErrPermission) || to != "socket:["+inode+"]" {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		id, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		return Process{id, strings.TrimSpace(string(name))}
	}
	return Process{}
}
