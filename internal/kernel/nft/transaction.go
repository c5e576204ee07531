package nft

import (
	"context"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
)

// A transaction collects the netlink messages of one transaction. Its Conn encodes them.
//
// google/nftables can only send the messages that it encodes. So the Conn gets a socket in memory, which stores the
// messages. This package sends them itself, because the ledger needs the kernel's echo of the generation. WithTestDial
// is the only option of google/nftables for another socket.
type transaction struct {
	*nftables.Conn
	msgs []netlink.Message
}

func newTransaction() (*transaction, error) {
	tx := &transaction{}
	c, err := nftables.New(nftables.AsLasting(), nftables.WithTestDial(tx.store))
	if err != nil {
		return nil, fmt.Errorf("collect messages: %w", err)
	}
	tx.Conn = c
	return tx, nil
}

// store is the socket in memory: it stores sent messages, and answers that the kernel accepted them.
func (tx *transaction) store(sent []netlink.Message) ([]netlink.Message, error) {
	if sent != nil {
		tx.msgs = sent
		return nil, nil
	}
	return []netlink.Message{{Header: netlink.Header{Type: netlink.Error}, Data: make([]byte, 4)}}, nil
}

// messages returns the messages from the beginning of the batch to its end, or none if nothing was queued. The first
// message asks for an echo, and thereby for the generation. Only the last message asks for an acknowledgement. The
// kernel reports errors of any message.
func (tx *transaction) messages() ([]netlink.Message, error) {
	if err := tx.Flush(); err != nil {
		return nil, fmt.Errorf("encode messages: %w", err)
	}
	for i := range tx.msgs {
		h := &tx.msgs[i].Header
		h.Sequence, h.PID = 0, 0 // the real socket sets them
		h.Flags &^= netlink.Acknowledge | netlink.Echo
	}
	if n := len(tx.msgs); n > 0 {
		tx.msgs[1].Header.Flags |= netlink.Echo          // behind the message that begins the batch
		tx.msgs[n-2].Header.Flags |= netlink.Acknowledge // before the message that ends the batch
	}
	return tx.msgs, nil
}

// flush sends a transaction. If ctx ends before the kernel answers, the kernel may have applied the transaction.
func (t *Table) flush(ctx context.Context, tx *transaction) error {
	msgs, err := tx.messages()
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
		t.Close() // the socket may hold unread answers
		return fmt.Errorf("commit to table %s: %w", t.name, err)
	}
	return nil
}

// send sends a batch, and enters its generation into the ledger.
func (t *Table) send(ctx context.Context, batch []netlink.Message) error {
	return t.ledger.commit(t.origin, func() (generation uint32, err error) {
		err = fwnetlink.Within(ctx, t.write, func() (err error) {
			generation, err = transact(t.write, batch)
			return err
		})
		return generation, err
	})
}

// transact sends a batch and returns its generation. The generation is 0 if the batch changed nothing or failed.
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
