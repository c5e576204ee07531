// Package listener is about sockets that listen. It finds the process that listens on a port of this network namespace,
// names the peer of a Unix socket, and limits the connections that a server keeps open for each client.
//
//	port ─→ net/tcp, net/tcp6: the socket's inode ─→ /proc/PID/fd: who has it open
//
// The package encapsulates the formats of /proc. If the other process is in another container, or this process lacks
// rights, Find reports an unknown process.
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

// A Process has a socket open. The zero value is an unknown process.
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

// Find returns the process that listens on a TCP port, at any address. listens is false if no process listens, or if
// /proc cannot be read.
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

// holder returns a process that has the socket with an inode open; the zero Process if it is unknown.
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
