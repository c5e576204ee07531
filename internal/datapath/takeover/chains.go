package takeover

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/nftables"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// iptablesTables has the tables of iptables that kube-proxy writes to.
var iptablesTables = []string{"filter", "nat", "mangle"}

// A program is one of the four iptables programs, each with its own rules.
type program struct {
	variant xtables.Variant
	is4     bool
}

// programs has all four.
var programs = []program{{xtables.NFT, true}, {xtables.Legacy, true}, {xtables.NFT, false}, {xtables.Legacy, false}}

// mayHave reports whether the program's rules may have chains of kube-proxy. It does not make the kernel load
// iptables-legacy.
func (p program) mayHave(ctx context.Context) (bool, error) {
	if p.variant == xtables.Legacy {
		return xtables.LegacyTables(p.is4)
	}
	if p.is4 {
		return hasChains(ctx, nftables.TableFamilyIPv4)
	}
	return hasChains(ctx, nftables.TableFamilyIPv6)
}

// hasChains reports whether a table of iptables-nft has a chain of kube-proxy that our mode iptables has not adopted.
func hasChains(ctx context.Context, family nftables.TableFamily) (bool, error) {
	var chains []*nftables.Chain
	err := ask(ctx, func(c *nftables.Conn) (err error) { chains, err = c.ListChainsOfTableFamily(family); return err })
	if err != nil {
		return false, fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	adopted := slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return adopts(c.Table.Name, c.Name) })
	return slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return slices.Contains(iptablesTables, c.Table.Name) && kubeProxys(c.Name, adopted)
	}), nil
}

// findChains finds the chains of kube-proxy's modes iptables and ipvs.
func (k *KubeProxy) findChains(ctx context.Context) ([]Remain, error) {
	var all []Remain
	for _, p := range programs {
		if may, err := p.mayHave(ctx); err != nil || !may {
			if err != nil {
				return nil, err
			}
			continue
		}
		text, serves, err := p.removal(ctx)
		if err != nil {
			return nil, err
		}
		if text != "" {
			all = append(all, Remain{"chains KUBE-* of " + xtables.Program(p.variant, p.is4, "save"), serves, p.remove})
		}
	}
	return all, nil
}

// removal returns the input for the restore program, and whether the rules serve Services.
func (p program) removal(ctx context.Context) (text string, serves bool, err error) {
	var r ruleset
	if err := xtables.Save(ctx, p.variant, p.is4, r.add); err != nil {
		return "", false, err
	}
	return r.removal(), r.serves(), nil
}

// remove removes the chains. It reads the rules again, because they may have changed since they were found.
func (p program) remove(ctx context.Context) error {
	text, _, err := p.removal(ctx)
	if err != nil || text == "" {
		return err
	}
	return xtables.Restore(ctx, p.variant, p.is4, text)
}
