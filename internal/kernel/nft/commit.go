package nft

import (
	"context"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
)

// A queue collects the messages of one transaction. google/nftables writes them into a
// socket that only stores them, so that we can send them the way the ledger needs.
type queue struct {
	*nftables.Conn
	msgs []netlink.Message
}

func newQueue() (*queue, error) {
	q := &queue{}
	c, err := nftables.New(nftables.AsLasting(), nftables.WithTestDial(q.take))
	if err != nil {
		return nil, fmt.Errorf("queue messages: %w", err)
	}
	q.Conn = c
	return q, nil
}

// take stores the messages that Flush sends, and answers that all succeeded.
func (q *queue) take(sent []netlink.Message) ([]netlink.Message, error) {
	if sent != nil {
		q.msgs = sent
		return nil, nil
	}
	return []netlink.Message{{Header: netlink.Header{Type: netlink.Error}, Data: make([]byte, 4)}}, nil
}

// messages returns the queued messages, from the beginning of the batch to its end; none if
// the queue is empty. The echo flag of the first message makes the kernel echo it, and send
// the new generation. The kernel reports errors in any case, success for the last message.
func (q *queue) messages() ([]netlink.Message, error) {
	if err := q.Flush(); err != nil {
		return nil, fmt.Errorf("encode messages: %w", err)
	}
	for i := range q.msgs {
		h := &q.msgs[i].Header
		h.Sequence, h.PID = 0, 0 // set by the socket that sends them
		h.Flags &^= netlink.Acknowledge | netlink.Echo
	}
	if n := len(q.msgs); n > 0 {
		q.msgs[1].Header.Flags |= netlink.Echo          // behind the batch's beginning
		q.msgs[n-2].Header.Flags |= netlink.Acknowledge // before the batch's end
	}
	return q.msgs, nil
}

// flush sends the queued messages as one transaction. If ctx ends before the kernel has
// answered, the transaction may have been applied.
func (t *Table) flush(ctx context.Context, q *queue) error {
	msgs, err := q.messages()
	if err != nil || len(msgs) == 0 {
		return err
	}
	if err := t.mayWrite(); err != nil {
		return err
	}
	if err := t.openWrite(); err != nil {
		return err
	}
	if err = t.send(ctx, msgs); err != nil {
		t.Close() // answers may be left unread
		return fmt.Errorf("commit to table %s: %w", t.name, err)
	}
	return nil
}

// send sends a batch and enters its generation into the ledger.
func (t *Table) send(ctx context.Context, batch []netlink.Message) error {
	return t.ledger.commit(t.origin, func() (generation uint32, err error) {
		err = fwnetlink.Within(ctx, t.write, func() (err error) {
			generation, err = transact(t.write, batch)
			return err
		})
		return generation, err
	})
}

// transact sends a batch and returns its generation; 0: it changed nothing, so that there
// is no new generation, or it failed.
func transact(c *netlink.Conn, batch []netlink.Message) (generation uint32, err error) {
	sent, err := c.SendMessages(batch)
	if err != nil {
		return 0, err
	}
	last := sent[len(sent)-2].Header.Sequence
	for {
		answers, err := c.Receive()
		if err != nil {
			return 0, err
		}
		for _, m := range answers {
			switch {
			case m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN:
				if len(m.Data) < nfgenmsg {
					return 0, fmt.Errorf("message of %d bytes", len(m.Data))
				}
				if generation, err = parseGeneration(m.Data[nfgenmsg:]); err != nil {
					return 0, err
				}
			case m.Header.Type == netlink.Error && m.Header.Sequence == last:
				return generation, nil
			}
		}
	}
}
