package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// nodeLock is an abstract Unix socket: its name belongs to the network namespace, as the
// rules do, whatever mounts and process ids an agent's container has. The kernel gives it
// back when the process ends, however it ends.
const nodeLock = "@fairway/agent"

// lockNode makes this process the only one that writes this node's rules, until the
// returned lock is closed. Two agents would each restore what the other one changes.
func lockNode() (io.Closer, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: nodeLock, Net: "unix"})
	if err == nil {
		return l, nil
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("lock the node: %w", err)
	}
	holder := ""
	if pid := lockHolder(); pid > 0 {
		holder = fmt.Sprintf(", process %d,", pid)
	}
	return nil, fmt.Errorf("another fairway agent%s runs on this node [end it first; ss -xlp shows who listens on %s]", holder, nodeLock)
}

// lockHolder returns the id of the process that has the lock; 0 if it is not known: it has
// just ended, or it is in a PID namespace that this process does not see.
func lockHolder() int {
	c, err := net.DialTimeout("unix", nodeLock, time.Second)
	if err != nil {
		return 0
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
