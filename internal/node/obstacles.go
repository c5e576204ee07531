package node

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/nft"
)

// findObstacles looks for firewall chains that drop what the node forwards unless a
// rule accepts it. Docker sets that policy, and an accept of ours in another table
// cannot overrule it, so all that can be done is to say why pods do not reach each
// other. Chains of iptables-legacy are not visible here.
func (n *Network) findObstacles(ctx context.Context) []problem {
	var r nft.Reader
	defer r.Close()
	var found []problem
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6, nft.Inet} {
		err := r.Chains(ctx, family, "", func(c nft.Chain) error {
			if c.Base && c.Hook == unix.NF_INET_FORWARD && c.Drop {
				found = append(found, problem{reason: reasonDropped, message: fmt.Sprintf("chain %s of table %s %s drops what no rule in it accepts, pods' packets too (Docker does this: accept the podCIDRs there, as with `iptables -I FORWARD -s PODCIDR -j ACCEPT` and -d PODCIDR)", c.Name, family, c.Table)})
			}
			return nil
		})
		if err != nil {
			return nil // masquerading reports what is wrong with nf_tables
		}
	}
	return found
}
