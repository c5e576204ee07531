package node

import (
	"context"
	"encoding/json"
	"fmt"
)

// findObstacles looks once, when the agent starts, for firewall chains that drop
// what the node forwards unless a rule accepts it. Docker sets that policy, and
// an accept of ours in another table cannot overrule it, so all that can be done
// is to say why pods do not reach each other. Chains of iptables-legacy are not
// visible here.
func (n *Network) findObstacles(ctx context.Context) []string {
	if n.looked {
		return n.obstacles
	}
	out, err := nft(ctx, "", "-j", "list", "chains")
	if err != nil {
		return nil // masquerading says what is wrong with nft
	}
	n.looked, n.obstacles = true, droppingChains(out)
	return n.obstacles
}

// droppingChains names the base chains at the forward hook whose policy is drop.
func droppingChains(listing []byte) []string {
	var all struct {
		Nftables []struct {
			Chain *struct{ Family, Table, Name, Type, Hook, Policy string }
		}
	}
	if json.Unmarshal(listing, &all) != nil {
		return nil
	}
	var found []string
	for _, item := range all.Nftables {
		if c := item.Chain; c != nil && c.Hook == "forward" && c.Policy == "drop" {
			found = append(found, fmt.Sprintf("chain %s of table %s %s drops what no rule in it accepts, pods' packets too (Docker does this: accept the podCIDRs there, as with `iptables -I FORWARD -s PODCIDR -j ACCEPT` and -d PODCIDR)", c.Name, c.Family, c.Table))
		}
	}
	return found
}
