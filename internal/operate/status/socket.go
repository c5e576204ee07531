package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/ipc/listener"
)

// Socket is the agent's abstract Unix socket. Its name belongs to the network namespace, as the rules do, whatever
// mounts and PID namespace the agent's container has. The kernel frees it when the process ends.
const Socket = "@fairway/agent"

// ErrNoAgent reports that no agent runs in this network namespace.
var ErrNoAgent = errors.New("no fairway agent runs on this node")

// answerTimeout limits a client of the socket.
const answerTimeout = 2 * time.Second

// Serve answers on l, which listens at Socket, until ctx ends: each client that is root gets now() as JSON. Without l,
// Serve waits until it can listen. Clients are served one at a time, because an answer waits for nothing.
func Serve(ctx context.Context, log *slog.Logger, l net.Listener, now func() Node) (err error) {
	if l == nil {
		if l, err = listener.Await(ctx, log, Socket); l == nil {
			return err
		}
	}
	err = listener.Serve(ctx, l, func(c net.Conn) {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(answerTimeout))
		if listener.Peer(c).Uid == 0 {
			_ = json.NewEncoder(c).Encode(now()) // the client may have gone
		}
	})
	if err != nil {
		return fmt.Errorf("status socket: %w", err)
	}
	return nil
}

// Ask returns the report of this network namespace's agent. It believes root only.
func Ask(ctx context.Context) (Node, error) {
	c, err := listener.DialRoot(ctx, Socket)
	if errors.Is(err, unix.ECONNREFUSED) {
		return Node{}, ErrNoAgent
	}
	if err != nil {
		return Node{}, fmt.Errorf("ask the agent: %w", err)
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	text, err := io.ReadAll(io.LimitReader(c, 1<<20))
	switch {
	case err != nil:
		return Node{}, fmt.Errorf("process %d has the socket %s and does not answer: %w [is it an older agent, or fairway agent --cleanup?]", listener.Peer(c).Pid, Socket, err)
	case len(bytes.TrimSpace(text)) == 0:
		return Node{}, errors.New("the agent answers root only [run it as root]")
	}
	var n Node
	if err := json.Unmarshal(text, &n); err != nil {
		return Node{}, fmt.Errorf("read the agent's answer: %w", err)
	}
	return n, nil
}

// Holder returns the ID of the process of root that has the socket. It returns 0 if there is none, or if the process is
// in a PID namespace that this process does not see.
func Holder() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := listener.DialRoot(ctx, Socket)
	if err != nil {
		return 0
	}
	defer c.Close()
	return int(listener.Peer(c).Pid)
}
