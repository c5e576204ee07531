package nft

import (
	"context"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Limits of one message and one transaction. A list of elements is a netlink attribute of
// at most 64 KiB; an element has at most about 340 bytes (a name of 192, a key of 28).
const (
	elementsPerMessage = 150
	// elementsPerCommit bounds a transaction: the kernel holds the tables' lock while it
	// commits, and a huge transaction at the start must not stall the node's traffic.
	elementsPerCommit = 15000
)

// A Write is one change of one element. New data for an existing key is a delete and an add
// in one transaction: packets see the old or the new data.
type Write struct {
	Set      string
	Key      []byte
	End      []byte // for interval sets: the first key behind the interval, nil: none
	Last     []byte // for concatenations with a range: the last key of the range, nil: none
	Data     []byte
	Goto     string // for maps of verdicts, instead of Data: the chain that it leads to
	Comment  string
	Timeout  time.Duration // for sets with flag timeout; 0: the set's own, or none
	Del, Add bool
}

// like reports whether w and o fit into one message.
func (w *Write) like(o *Write) bool { return w.Set == o.Set && w.Del == o.Del && w.Add == o.Add }

// Commit queues the messages of prepare (nil: none) and applies ws in order, in as few
// transactions as elementsPerCommit allows, prepare's with the first of them. After an
// error some transactions may have been applied, and nothing is queued any more.
func (t *Table) Commit(ctx context.Context, prepare func(*nftables.Conn) (queued bool, err error), ws []Write) error {
	for first := true; first || len(ws) > 0; first = false {
		n := min(len(ws), elementsPerCommit)
		q, err := newQueue()
		if err != nil {
			return err
		}
		queued := n > 0
		if first && prepare != nil {
			prepared, err := prepare(q.Conn)
			if err != nil {
				return err
			}
			queued = queued || prepared
		}
		if err := t.add(q.Conn, ws[:n]); err != nil {
			return err
		}
		if queued {
			if err := t.flush(ctx, q); err != nil {
				return err
			}
		}
		ws = ws[n:]
	}
	return nil
}

// add queues ws on c. The first message has one element, because the kernel echoes the first
// message of a batch.
func (t *Table) add(c *nftables.Conn, ws []Write) error {
	for most := 1; len(ws) > 0; most = elementsPerMessage {
		n := 1
		for n < len(ws) && n < most && ws[n].like(&ws[0]) {
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
