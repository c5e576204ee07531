package nft

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	fwnetlink "github.com/fairway-net/fairway/internal/netlink"
)

// socketBuffer is for commits: each is one datagram, with an answer for each message.
const socketBuffer = 16 << 20

// A Table is one table of family inet. It works in the network namespace of the thread
// that first used it, until Close. It belongs to one goroutine.
//
// Its sockets stay open: to close one makes the kernel wait for the elements deleted
// before, some 10 ms each time (nft_rcv_nl_event).
type Table struct {
	name  string
	write *nftables.Conn // nil: not yet
	sock  *netlink.Conn  // the socket of write
	ask   *netlink.Conn  // for questions; nil: not yet
	// commits is how many transactions changed something since a Watch last asked.
	commits uint32
	fail    func() error
}

// New returns the table of that name. It does not touch the kernel.
func New(name string) *Table { return &Table{name: name} }

// Name returns the table's name.
func (t *Table) Name() string { return t.name }

// FailWrites makes every write ask f first and fail with its error; nil ends it. It is
// for tests that inject faults.
func (t *Table) FailWrites(f func() error) { t.fail = f }

// Close forgets the sockets, with whatever is queued or unread on them. The table stays
// in the kernel, and a closed one may be used again.
func (t *Table) Close() {
	if t.write != nil {
		_ = t.write.CloseLasting() // nothing is lost by a socket that does not close
		t.write, t.sock = nil, nil
	}
	if t.ask != nil {
		_ = t.ask.Close()
		t.ask = nil
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

func (t *Table) conn() (*nftables.Conn, error) {
	if t.write != nil {
		return t.write, nil
	}
	size := func(c *netlink.Conn) error {
		t.sock = c
		// SO_SNDBUFFORCE and SO_RCVBUFFORCE: they are not bound to the sysctls.
		return errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer))
	}
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(size))
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w [needs CAP_NET_ADMIN]", err)
	}
	t.write = c
	return c, nil
}

// flush sends what is queued on c as one transaction. If ctx ends before the kernel has
// answered, the transaction may have been made.
func (t *Table) flush(ctx context.Context, c *nftables.Conn) error {
	err := t.mayWrite()
	if err == nil {
		if err = fwnetlink.Within(ctx, t.sock, c.Flush); err != nil {
			err = fmt.Errorf("commit to table %s: %w", t.name, err)
		}
	}
	if err != nil {
		t.Close() // with what is queued still
		return err
	}
	t.commits++
	return nil
}

func (t *Table) mayWrite() error {
	if t.fail == nil {
		return nil
	}
	return t.fail()
}

// Delete removes the table with all that is in it; it is no error if there is none.
//
// The hooks are emptied first, in a transaction of their own: when a whole table goes,
// the kernel takes the elements of its maps a moment before it stops asking its rules,
// and would refuse connections that another mechanism serves already.
func (t *Table) Delete(ctx context.Context) error {
	defer t.Close()
	chains, err := t.list(ctx)
	if err != nil || chains == nil {
		return err
	}
	c, err := t.conn()
	if err != nil {
		return err
	}
	hooks := 0
	for _, chain := range chains {
		if chain.hook {
			hooks++
			c.FlushChain(t.Chain(chain.name))
		}
	}
	if hooks > 0 {
		if err := t.flush(ctx, c); err != nil {
			return fmt.Errorf("empty the hooks: %w", err)
		}
	}
	if c, err = t.conn(); err != nil {
		return err
	}
	c.DelTable(t.Ref())
	if err := t.flush(ctx, c); err != nil {
		return fmt.Errorf("delete table %s: %w", t.name, err)
	}
	return nil
}
