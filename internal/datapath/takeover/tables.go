package takeover

import (
	"context"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	deadline "github.com/fairway-net/fairway/internal/kernel/netlink"
)

// kubeProxyTable is the name of kube-proxy's tables in nf_tables. Each family has one.
const kubeProxyTable = "kube-proxy"

var families = []struct {
	name   string
	family nftables.TableFamily
}{{"ip", nftables.TableFamilyIPv4}, {"ip6", nftables.TableFamilyIPv6}}

// ask calls f with a connection to nf_tables. Its requests end with the context.
func ask(ctx context.Context, f func(*nftables.Conn) error) error {
	var socket *netlink.Conn
	note := func(c *netlink.Conn) error { socket = c; return nil }
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(note))
	if err != nil {
		return fmt.Errorf("open netlink socket: %w [needs CAP_NET_ADMIN]", err)
	}
	err = deadline.Within(ctx, socket, func() error { return f(c) })
	_ = c.CloseLasting() // f has got all answers
	return err
}

// findTables finds the tables of kube-proxy's mode nftables.
func (k *KubeProxy) findTables(ctx context.Context) ([]Remain, error) {
	var all []Remain
	for _, f := range families {
		var tables []*nftables.Table
		err := ask(ctx, func(c *nftables.Conn) (err error) { tables, err = c.ListTablesOfFamily(f.family); return err })
		if err != nil {
			return nil, fmt.Errorf("list the nf_tables tables of family %s: %w", f.name, err)
		}
		for _, t := range tables {
			if t.Name == kubeProxyTable {
				all = append(all, Remain{
					"nftables table " + f.name + " " + t.Name, true, // written with its first Services, in one transaction
					func(ctx context.Context) error {
						return ask(ctx, func(c *nftables.Conn) error { return deleteTable(c, t) })
					},
				})
			}
		}
	}
	return all, nil
}

// deleteTable empties a table's base chains in one transaction, and deletes the table in the next. In a single
// transaction the kernel would remove elements of maps a moment before the rules that use them, and refuse connections
// that we serve.
func deleteTable(c *nftables.Conn, t *nftables.Table) error {
	chains, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, chain := range chains {
		if chain.Table.Name == t.Name && chain.Hooknum != nil {
			c.FlushChain(chain)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("empty its hooks: %w", err)
	}
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete it: %w", err)
	}
	return nil
}
