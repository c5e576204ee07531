package nft

import (
	"context"
	"fmt"

	"github.com/google/nftables"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
)

// Fill adds objects to the table of the lock, in one transaction. build queues them. A table with rules that the kernel
// deletes when the process ends is the table for rules that must not outlive their purpose.
//
// The transaction is in no ledger: for every Watch of this process it is a change by another program.
func (l *Lock) Fill(ctx context.Context, name string, build func(c *nftables.Conn, table *nftables.Table) error) error {
	if err := l.transact(ctx, func(c *nftables.Conn) error {
		return build(c, &nftables.Table{Name: name, Family: nftables.TableFamilyINet})
	}); err != nil {
		return fmt.Errorf("fill table %s: %w", name, err)
	}
	return nil
}

// Remove deletes the table of the lock with its rules, and gives the lock back. Release alone is enough, but takes effect
// only when no child process that starts at this moment has the socket any more.
func (l *Lock) Remove(ctx context.Context, name string) error {
	defer l.Release()
	err := l.transact(ctx, func(c *nftables.Conn) error {
		c.DelTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove table %s: %w", name, err)
	}
	return nil
}

func (l *Lock) transact(ctx context.Context, build func(c *nftables.Conn) error) error {
	tx, err := newTransaction()
	if err != nil {
		return err
	}
	if err := build(tx.Conn); err != nil {
		return err
	}
	msgs, err := tx.messages()
	if err != nil || len(msgs) == 0 {
		return err
	}
	return fwnetlink.Within(ctx, l.conn, func() error {
		_, err := transact(l.conn, msgs)
		return err
	})
}
