package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// socketBuffer is the size of the buffers for commits. A commit is one datagram, and its errors are an answer for each
// message.
const socketBuffer = 16 << 20

// A Table is one table of family inet. Until Close it works in the network namespace of the thread that first used it.
// Only one goroutine may use it.
//
// Its sockets stay open, because to close a socket takes the kernel about 10 ms: it waits for elements that were
// deleted before (nft_rcv_nl_event).
type Table struct {
	name   string
	origin *origin       // identifies this Table in the ledger
	ledger *ledger       // of its network namespace; nil: no socket is open
	write  *netlink.Conn // the socket for commits; nil: not open
	reader Reader
	fail   func() error
	// refused is how many times nft refused to load a copy of the running rules; see recreate.
	refused int
}

// New returns the table of that name. It does not access the kernel.
func New(name string) *Table { return &Table{name: name, origin: &origin{name}} }

// Name returns the table's name.
func (t *Table) Name() string { return t.name }

// FailWrites makes every write call f first and fail with the error of f. nil ends this. It is for tests that inject
// faults.
func (t *Table) FailWrites(f func() error) { t.fail = f }

// Close closes the sockets and drops unread messages. The table stays in the kernel, and the Table may be used again.
func (t *Table) Close() {
	if t.write != nil {
		_ = t.write.Close() // an error loses no data
		t.write = nil
	}
	t.reader.Close()
	if t.ledger != nil {
		t.ledger.leave()
		t.ledger = nil
	}
}

// Ref returns the table as google/nftables names it, for the prepare function of Commit.
func (t *Table) Ref() *nftables.Table {
	return &nftables.Table{Name: t.name, Family: nftables.TableFamilyINet}
}

// Set returns a set or map of the table, for the prepare function of Commit.
func (t *Table) Set(name string) *nftables.Set { return &nftables.Set{Table: t.Ref(), Name: name} }

// Chain returns a chain of the table, for the prepare function of Commit.
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
	// Both use SO_SNDBUFFORCE and SO_RCVBUFFORCE, which ignore the limits of the sysctls.
	if err := errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer)); err != nil {
		_ = c.Close()
		return fmt.Errorf("set buffers of netlink socket: %w [needs CAP_NET_ADMIN]", err)
	}
	t.write = c
	return t.joinLedger()
}

// joinLedger joins the ledger of the thread's network namespace, unless the Table has joined one.
func (t *Table) joinLedger() (err error) {
	if t.ledger == nil {
		if t.ledger, err = joinLedger(); err != nil {
			return fmt.Errorf("identify network namespace: %w", err)
		}
	}
	return nil
}

// Generation returns the number of the last transaction that changed a table of this network namespace.
func (t *Table) Generation(ctx context.Context) (uint32, error) {
	gen, err := t.reader.Generation(ctx)
	if err != nil {
		return 0, err
	}
	return gen, t.joinLedger()
}

// Supported is Reader.Supported.
func (t *Table) Supported(ctx context.Context) (bool, error) { return t.reader.Supported(ctx) }

// mayWrite returns the error that a test injects, or nil.
func (t *Table) mayWrite() error {
	if t.fail == nil {
		return nil
	}
	return t.fail()
}

// Delete removes the table with its contents. A missing table is not an error.
//
// A first transaction empties the base chains. When the kernel deletes a whole table, it removes the elements of maps a
// moment before it stops evaluating the rules. Without the first transaction, the rules would reject connections that
// another mechanism serves already.
func (t *Table) Delete(ctx context.Context) error {
	defer t.Close()
	err := t.deleteTable(ctx, t.name)
	if err == nil {
		err = t.deleteCopy(ctx)
	}
	return err
}

func (t *Table) deleteTable(ctx context.Context, name string) error {
	chains, err := t.listOf(ctx, name)
	if err != nil || chains == nil {
		return err
	}
	tx, err := newTransaction()
	if err != nil {
		return err
	}
	ref := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	for _, chain := range chains {
		if chain.Base {
			tx.FlushChain(&nftables.Chain{Table: ref, Name: chain.Name})
		}
	}
	if err := t.flush(ctx, tx); err != nil {
		return fmt.Errorf("empty the base chains of table %s: %w", name, err)
	}
	if tx, err = newTransaction(); err != nil {
		return err
	}
	tx.DelTable(ref)
	if err := t.flush(ctx, tx); err != nil {
		return fmt.Errorf("delete table %s: %w", name, err)
	}
	return nil
}
