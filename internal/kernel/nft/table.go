package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// socketBuffer is for commits: a commit is one datagram, with an answer for each message.
const socketBuffer = 16 << 20

// A Table is one table of family inet. It works in the network namespace of the thread
// that first used it, until Close. It belongs to one goroutine.
//
// Its sockets stay open: when a socket is closed, the kernel waits for the elements deleted
// before, about 10 ms each time (nft_rcv_nl_event).
type Table struct {
	name   string
	origin *origin       // itself, in the ledger
	ledger *ledger       // of its network namespace, while a socket is open
	write  *netlink.Conn // for commits; nil: not yet
	reader Reader
	fail   func() error
	// refused is how often nft did not move what runs; see renew.
	refused int
}

// New returns the table of that name. It does not touch the kernel.
func New(name string) *Table { return &Table{name: name, origin: &origin{name}} }

// Name returns the table's name.
func (t *Table) Name() string { return t.name }

// FailWrites makes every write ask f first and fail with its error; nil ends it. It is
// for tests that inject faults.
func (t *Table) FailWrites(f func() error) { t.fail = f }

// Close closes the sockets, with all queued or unread messages. The table stays in the
// kernel, and a closed Table may be used again.
func (t *Table) Close() {
	if t.write != nil {
		_ = t.write.Close() // a socket that does not close loses nothing
		t.write = nil
	}
	t.reader.Close()
	if t.ledger != nil {
		t.ledger.leave()
		t.ledger = nil
	}
}

// Ref is the table as google/nftables names it, for what is queued in Commit.
func (t *Table) Ref() *nftables.Table {
	return &nftables.Table{Name: t.name, Family: nftables.TableFamilyINet}
}

// Set is one of the table's sets or maps, for what is queued in Commit.
func (t *Table) Set(name string) *nftables.Set { return &nftables.Set{Table: t.Ref(), Name: name} }

// Chain is one of the table's chains, for what is queued in Commit.
func (t *Table) Chain(name string) *nftables.Chain {
	return &nftables.Chain{Table: t.Ref(), Name: name}
}

// openWrite opens the socket for commits.
func (t *Table) openWrite() error {
	if t.write != nil {
		return t.joinLedger()
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	// SO_SNDBUFFORCE and SO_RCVBUFFORCE ignore the limits of the sysctls.
	if err := errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer)); err != nil {
		_ = c.Close()
		return fmt.Errorf("set buffers of netlink socket: %w [needs CAP_NET_ADMIN]", err)
	}
	t.write = c
	return t.joinLedger()
}

// joinLedger joins the ledger of the thread's network namespace.
func (t *Table) joinLedger() (err error) {
	if t.ledger == nil {
		if t.ledger, err = joinLedger(); err != nil {
			return fmt.Errorf("identify network namespace: %w", err)
		}
	}
	return nil
}

// Generation returns the number of the last change of a table in this network namespace.
func (t *Table) Generation(ctx context.Context) (uint32, error) {
	gen, err := t.reader.Generation(ctx)
	if err != nil {
		return 0, err
	}
	return gen, t.joinLedger()
}

// Supported is Reader.Supported.
func (t *Table) Supported(ctx context.Context) (bool, error) { return t.reader.Supported(ctx) }

func (t *Table) mayWrite() error {
	if t.fail == nil {
		return nil
	}
	return t.fail()
}

// Delete removes the table with its contents. A missing table is not an error.
//
// The hooks are emptied first, in a transaction of their own: when a whole table is deleted,
// the kernel removes the elements of its maps a moment before it stops evaluating its rules,
// and would reject connections that another mechanism serves already.
func (t *Table) Delete(ctx context.Context) error {
	defer t.Close()
	err := t.deleteTable(ctx, t.name)
	if err == nil {
		err = t.deleteFormer(ctx)
	}
	return err
}

func (t *Table) deleteTable(ctx context.Context, name string) error {
	chains, err := t.listOf(ctx, name)
	if err != nil || chains == nil {
		return err
	}
	q, err := newQueue()
	if err != nil {
		return err
	}
	ref := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	for _, chain := range chains {
		if chain.Base {
			q.FlushChain(&nftables.Chain{Table: ref, Name: chain.Name})
		}
	}
	if err := t.flush(ctx, q); err != nil {
		return fmt.Errorf("empty the hooks of table %s: %w", name, err)
	}
	if q, err = newQueue(); err != nil {
		return err
	}
	q.DelTable(ref)
	if err := t.flush(ctx, q); err != nil {
		return fmt.Errorf("delete table %s: %w", name, err)
	}
	return nil
}
