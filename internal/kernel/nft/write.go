package nft

import (
	"context"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const (
	// elementsPerMessage is the largest number of elements in one message. A list of elements is a netlink attribute
	// of at most 64 KiB. An element has at most about 340 bytes, with a name of 192 bytes and a key of 28.
	elementsPerMessage = 150
	// elementsPerCommit is the largest number of elements in one transaction. The kernel holds the lock of all tables
	// while it commits, and a huge transaction would stall the node's traffic.
	elementsPerCommit = 15000
)

// A Write adds, deletes or replaces one element. To replace an element is to delete and to add it in one transaction:
// packets see the old data or the new data.
type Write struct {
	Set      string
	Key      []byte
	End      []byte // in a set of intervals: the first key behind the interval; nil: the set has no intervals, or no end
	Last     []byte // in a set of ranges of concatenations: the last key of the range; nil: one key
	Data     []byte
	Goto     string // in a map of verdicts: the chain that the element leads to; Data is nil
	Comment  string
	Timeout  time.Duration // in a set with timeouts; 0: the set's own timeout, or none
	Del, Add bool          // both: replace
}

// fitsWith reports whether w and o can share a message.
func (w *Write) fitsWith(o *Write) bool { return w.Set == o.Set && w.Del == o.Del && w.Add == o.Add }

// Commit applies ws in order, in as few transactions as elementsPerCommit allows. The messages that prepare queues come
// first, in the first transaction. prepare may be nil. After an error the kernel may have applied some transactions.
func (t *Table) Commit(ctx context.Context, prepare func(*nftables.Conn) (queued bool, err error), ws []Write) error {
	for first := true; first || len(ws) > 0; first = false {
		n := min(len(ws), elementsPerCommit)
		tx, err := newTransaction()
		if err != nil {
			return err
		}
		queued := n > 0
		if first && prepare != nil {
			prepared, err := prepare(tx.Conn)
			if err != nil {
				return err
			}
			queued = queued || prepared
		}
		if err := t.queue(tx.Conn, ws[:n]); err != nil {
			return err
		}
		if queued {
			if err := t.flush(ctx, tx); err != nil {
				return err
			}
		}
		ws = ws[n:]
	}
	return nil
}

// queue queues ws on c. The first message has one element only, because the kernel echoes the first message.
func (t *Table) queue(c *nftables.Conn, ws []Write) error {
	for limit := 1; len(ws) > 0; limit = elementsPerMessage {
		n := 1
		for n < len(ws) && n < limit && ws[n].fitsWith(&ws[0]) {
			n++
		}
		s := t.Set(ws[0].Set)
		if ws[0].Del {
			if err := c.SetDeleteElements(s, toElements(ws[:n], false)); err != nil {
				return fmt.Errorf("delete from %s: %w", s.Name, err)
			}
		}
		if ws[0].Add {
			for _, w := range ws[:n] {
				s.HasTimeout = s.HasTimeout || w.Timeout != 0
			}
			if err := c.SetAddElements(s, toElements(ws[:n], true)); err != nil {
				return fmt.Errorf("add to %s: %w", s.Name, err)
			}
		}
		ws = ws[n:]
	}
	return nil
}

func toElements(ws []Write, add bool) []nftables.SetElement {
	els := make([]nftables.SetElement, 0, len(ws))
	for _, w := range ws {
		e := nftables.SetElement{Key: w.Key, KeyEnd: w.Last}
		if add {
			e.Val, e.Comment, e.Timeout = w.Data, w.Comment, w.Timeout
			if w.Goto != "" {
				e.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: w.Goto}
			}
		}
		els = append(els, e)
		if w.End != nil {
			els = append(els, nftables.SetElement{Key: w.End, IntervalEnd: true})
		}
	}
	return els
}
