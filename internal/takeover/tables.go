package takeover

import (
	"context"
	"fmt"

	"github.com/google/nftables"
)

// kubeProxyTable is the name of kube-proxy's nf_tables tables, one in each family.
const kubeProxyTable = "kube-proxy"

var families = []struct {
	name   string
	family nftables.TableFamily
}{{"ip", nftables.TableFamilyIPv4}, {"ip6", nftables.TableFamilyIPv6}}

// findTables finds what kube-proxy writes in its mode nftables.
func (k *KubeProxy) findTables(context.Context) ([]Remain, error) {
	var all []Remain
	for _, f := range families {
		tables, err := (&nftables.Conn{}).ListTablesOfFamily(f.family)
		if err != nil {
			return nil, fmt.Errorf("list the nf_tables tables of family %s: %w", f.name, err)
		}
		for _, t := range tables {
			if t.Name == kubeProxyTable {
				all = append(all, Remain{
					"nftables table " + f.name + " " + t.Name,
					func(context.Context) error { return deleteTable(t) },
				})
			}
		}
	}
	return all, nil
}

// deleteTable empties a table's hooks in one transaction and deletes it in another: when
// a whole table goes at once, the kernel takes the elements of its maps a moment before
// it stops asking its rules, and refuses connections that we serve.
func deleteTable(t *nftables.Table) error {
	c := &nftables.Conn{}
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
