package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
)

// ErrLocked reports that another process has the lock.
var ErrLocked = errors.New("another process has the lock")

// A Lock is an empty table that only this process can change. Only a process that may write the rules of a network
// namespace can lock it, whatever files the process sees. The kernel deletes the table when the process ends, also
// after kill -9. `nft flush ruleset` leaves the table alone.
type Lock struct{ conn *netlink.Conn }

// Acquire takes the lock of that name in the network namespace of the calling thread. The error is ErrLocked if another
// process has the lock, and errors.ErrUnsupported if the kernel has no such tables: Linux has them since 5.12.
func Acquire(ctx context.Context, name string) (*Lock, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err == nil {
		if err = own(ctx, c, name); err == nil {
			return &Lock{c}, nil
		}
		_ = c.Close() // nothing was written
	}
	switch {
	case errors.Is(err, unix.EPERM):
		var r Reader
		defer r.Close()
		if _, there, _ := r.Table(ctx, Inet, name); there { // an error means that this process may not read it
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("lock table %s: %w [needs CAP_NET_ADMIN]", name, err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return nil, fmt.Errorf("lock table %s: %w: %w", name, errors.ErrUnsupported, err)
	}
	return nil, fmt.Errorf("lock table %s: %w", name, err)
}

// tableOwned is NFT_TABLE_F_OWNER: the table belongs to the socket that made it.
const tableOwned = 2

// own makes the table. It replaces a table that belongs to no socket, which an administrator may have restored.
func own(ctx context.Context, c *netlink.Conn, name string) error {
	message := func(kind uint16, flags netlink.HeaderFlags, tableFlags uint32) netlink.Message {
		body := fwnetlink.AppendText([]byte{byte(Inet), unix.NFNETLINK_V0, 0, 0}, unix.NFTA_TABLE_NAME, name)
		if kind == unix.NFT_MSG_NEWTABLE {
			body = fwnetlink.Append(body, unix.NFTA_TABLE_FLAGS, binary.BigEndian.AppendUint32(nil, tableFlags))
		}
		return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags}, Data: body}
	}
	limit := func(kind netlink.HeaderType) netlink.Message {
		body := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: body}
	}
	batch := []netlink.Message{
		limit(unix.NFNL_MSG_BATCH_BEGIN),
		message(unix.NFT_MSG_NEWTABLE, netlink.Create, 0),
		message(unix.NFT_MSG_DELTABLE, 0, 0),
		message(unix.NFT_MSG_NEWTABLE, netlink.Create|netlink.Excl|netlink.Acknowledge, tableOwned),
		limit(unix.NFNL_MSG_BATCH_END),
	}
	return fwnetlink.Within(ctx, c, func() error {
		_, err := transact(c, batch)
		return err
	})
}

// Release gives the lock back.
func (l *Lock) Release() { _ = l.conn.Close() } // closing deletes the table
