package nftables

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
)

// Limits of what is sent at once. A list of elements is a netlink attribute, which has
// 64 KiB; an element has at most some 340 bytes (a name of 192, a key of 28).
const (
	elementsPerMessage = 150
	// elementsPerCommit bounds a transaction: the kernel holds the tables' lock while it
	// commits, and a node that starts must not stall its traffic for one huge one.
	elementsPerCommit = 15000
	socketBuffer      = 16 << 20
)

// A write is one change of one element. New data for a key that is there is a delete
// and an add in one transaction: the kernel shows packets one or the other.
type write struct {
	set      string
	key      []byte
	end      []byte // for interval sets: the first key behind the interval, nil: none
	last     []byte // for concatenations with a range: the last key of the range, nil: none
	data     []byte
	comment  string
	del, add bool
}

// kernel sends writes, over one socket in the network namespace of the thread that
// first asked for it. The socket stays open: to close one makes the kernel wait for
// the elements deleted before, some 10 ms each time (nft_rcv_nl_event).
type kernel struct {
	table *nftables.Table
	open  *nftables.Conn // nil: not yet
	ask   *netlink.Conn  // the same, for questions; nil: not yet
	// commits is how many transactions changed something since it was last set to 0.
	commits uint32
	// fail, if set, is asked before each transaction and fails it with its error:
	// tests inject faults here.
	fail func() error
}

func (k *kernel) conn() (*nftables.Conn, error) {
	if k.open != nil {
		return k.open, nil
	}
	size := func(c *netlink.Conn) error {
		// SO_SNDBUFFORCE and SO_RCVBUFFORCE: a commit is one datagram.
		return errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer))
	}
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(size))
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w [needs CAP_NET_ADMIN]", err)
	}
	k.open = c
	return c, nil
}

// close forgets the socket, with whatever is queued or unread on it.
func (k *kernel) close() {
	if k.open != nil {
		_ = k.open.CloseLasting() // nothing is lost by a socket that does not close
		k.open = nil
	}
	if k.ask != nil {
		_ = k.ask.Close()
		k.ask = nil
	}
}

// commit queues what prepare does and applies ws in order, in as few transactions as
// elementsPerCommit allows; writes of equal sets and kinds that follow each other
// share messages.
func (k *kernel) commit(prepare func(*nftables.Conn) (queued bool, err error), ws []write) error {
	for first := true; first || len(ws) > 0; first = false {
		n := min(len(ws), elementsPerCommit)
		c, err := k.conn()
		if err != nil {
			return err
		}
		queued := false
		if first {
			if queued, err = prepare(c); err != nil {
				return err
			}
		}
		if err := k.add(c, ws[:n]); err != nil {
			return err
		}
		if err := k.flush(c); err != nil {
			return err
		}
		if queued || n > 0 {
			k.commits++
		}
		ws = ws[n:]
	}
	return nil
}

func (k *kernel) flush(c *nftables.Conn) error {
	if k.fail != nil {
		if err := k.fail(); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// add queues ws on c.
func (k *kernel) add(c *nftables.Conn, ws []write) error {
	for len(ws) > 0 {
		n := 1
		for n < len(ws) && n < elementsPerMessage && ws[n].set == ws[0].set && ws[n].del == ws[0].del && ws[n].add == ws[0].add {
			n++
		}
		s := &nftables.Set{Table: k.table, Name: ws[0].set}
		if ws[0].del {
			if err := c.SetDeleteElements(s, toElements(ws[:n], false)); err != nil {
				return fmt.Errorf("delete from %s: %w", s.Name, err)
			}
		}
		if ws[0].add {
			if err := c.SetAddElements(s, toElements(ws[:n], true)); err != nil {
				return fmt.Errorf("add to %s: %w", s.Name, err)
			}
		}
		ws = ws[n:]
	}
	return nil
}

func toElements(ws []write, data bool) []nftables.SetElement {
	els := make([]nftables.SetElement, 0, len(ws))
	for _, w := range ws {
		e := nftables.SetElement{Key: w.key, KeyEnd: w.last}
		if data {
			e.Val, e.Comment = w.data, w.comment
		}
		els = append(els, e)
		if w.end != nil {
			els = append(els, nftables.SetElement{Key: w.end, IntervalEnd: true})
		}
	}
	return els
}

// addWay queues the chain that does h and the element that leads to it.
func (k *kernel) addWay(c *nftables.Conn, h how, mark uint32) error {
	chain := c.AddChain(&nftables.Chain{Table: k.table, Name: h.chain()})
	c.FlushChain(chain) // should it be there without its element
	for _, exprs := range h.rules(mark) {
		c.AddRule(&nftables.Rule{Table: k.table, Chain: chain, Exprs: exprs})
	}
	return c.SetAddElements(&nftables.Set{Table: k.table, Name: waysMap}, []nftables.SetElement{{
		Key: howData(h), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: h.chain()},
	}})
}

// delWay queues the inverse of addWay.
func (k *kernel) delWay(c *nftables.Conn, h how) error {
	if err := c.SetDeleteElements(&nftables.Set{Table: k.table, Name: waysMap}, []nftables.SetElement{{Key: howData(h)}}); err != nil {
		return err
	}
	chain := &nftables.Chain{Table: k.table, Name: h.chain()}
	c.FlushChain(chain)
	c.DelChain(chain)
	return nil
}
