package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Any user can take the name of an abstract socket. So a name is no lock, and programs believe only sockets of root.

// A TakenError says that another process has the name of an abstract socket.
type TakenError struct {
	Socket string
	// PID is 0 if the process is not visible from here, or does not answer.
	PID int32
	// User is -1 if the process does not answer.
	User int
}

func (e *TakenError) Error() string {
	switch {
	case e.User < 0:
		return fmt.Sprintf("a process has the socket %s and does not answer [ss -xlp shows it; end it]", e.Socket)
	case e.PID == 0:
		return fmt.Sprintf("a process of user %d has the socket %s [ss -xlp on the node shows it; end it]", e.User, e.Socket)
	}
	return fmt.Sprintf("process %d of user %d has the socket %s [end it]", e.PID, e.User, e.Socket)
}

// Listen listens at an abstract socket. The error is a *TakenError if another process has its name.
func Listen(socket string) (net.Listener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, holderOf(socket)
	case err != nil:
		return nil, err // without this line the interface would hold a nil pointer
	}
	return l, nil
}

// holderOf returns the process that listens at a socket.
func holderOf(socket string) *TakenError {
	e := &TakenError{Socket: socket, User: -1}
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return e
	}
	defer c.Close()
	who := Peer(c)
	e.PID, e.User = who.Pid, int(who.Uid)
	return e
}

// awaitPause is the time between two tries of Await.
const awaitPause = time.Second

// Await is Listen, but waits until the name is free. It warns if a process that is not root's has the name. It returns
// nil if ctx ends before.
func Await(ctx context.Context, log *slog.Logger, socket string) (net.Listener, error) {
	warned := false
	for {
		l, err := Listen(socket)
		var taken *TakenError
		if !errors.As(err, &taken) {
			return l, err
		}
		if taken.User != 0 && !warned {
			warned = true
			log.Warn("a socket of Fairway is another program's: until that program ends, nobody can ask this one", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(awaitPause):
		}
	}
}

// DialRoot connects to a Unix socket. The error is a *TakenError if the process that listens is not root's.
func DialRoot(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if who := Peer(c); who.Uid != 0 {
		_ = c.Close()
		return nil, &TakenError{Socket: socket, PID: who.Pid, User: int(who.Uid)}
	}
	return c, nil
}
