package command

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/operate/status"
)

// LockNode makes this process the only writer of the node's rules until the returned socket is closed. Two agents would
// undo each other's changes.
func LockNode() (net.Listener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: status.Socket, Net: "unix"})
	if err == nil {
		return l, nil
	}
	if !errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("lock the node: %w", err)
	}
	holder := ""
	if pid := status.Holder(); pid > 0 {
		holder = fmt.Sprintf(", process %d,", pid)
	}
	return nil, fmt.Errorf("another fairway agent%s runs on this node [end it first; ss -xlp shows who listens on %s]", holder, status.Socket)
}
