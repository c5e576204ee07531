package command

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/fairway-net/fairway/internal/ipc/listener"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/operate/status"
)

// A NodeLock makes this process the only writer of the node's rules.
type NodeLock struct {
	table *nft.Lock // nil: the kernel has no such lock
	// Status listens at status.Socket. It is nil if a program of another user has that name.
	Status net.Listener
}

// LockNode locks the node's rules until Release. Two agents would undo each other's changes. The lock is a table of
// nf_tables, because the name of a socket is not enough: any user of the node can take it. A kernel without such tables,
// and an agent older than them, have only the name.
func LockNode(ctx context.Context) (*NodeLock, error) {
	l := &NodeLock{}
	var err error
	if l.table, err = nft.Acquire(ctx, numbers.TableLock); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		if errors.Is(err, nft.ErrLocked) {
			err = secondAgent()
		}
		return nil, err
	}
	var taken *listener.TakenError
	switch l.Status, err = listener.Listen(status.Socket); {
	case err == nil, errors.As(err, &taken) && taken.User != 0:
		return l, nil
	case taken != nil:
		err = secondAgent()
	default:
		err = fmt.Errorf("lock the node: %w", err)
	}
	l.Release()
	return nil, err
}

// secondAgent is the error of a process that must not write the node's rules.
func secondAgent() error {
	holder := ""
	if pid := status.Holder(); pid > 0 {
		holder = fmt.Sprintf(", process %d,", pid)
	}
	return fmt.Errorf("another fairway agent%s runs on this node [end it first; ss -xlp shows who listens on %s]", holder, status.Socket)
}

// Release gives the lock back.
func (l *NodeLock) Release() {
	if l.Status != nil {
		_ = l.Status.Close() // the status server may have closed it
	}
	if l.table != nil {
		l.table.Release()
	}
}
