package iptables

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// withAffinity returns a table with a Service with affinity at a ClusterIP and a NodePort, on a node with two ranges of
// pods.
func withAffinity() *service.Table {
	s := settings()
	s.Pods = append(s.Pods, netip.MustParsePrefix("10.245.0.0/16"))
	e := numbered(1, 3)
	e.Frontends[0].Affinity = 3 * time.Hour
	port := *e.Frontends[0]
	port.Addr, port.ClusterIP = netip.MustParseAddrPort("0.0.0.0:30080"), false
	return service.NewTable(s, append(e.Frontends, &port))
}

// TestLookupComesFirst: at each moment of an upgrade, the chains that look clients up have rules if the program leads
// to them. Otherwise known clients would go to other endpoints, and be recorded there.
func TestLookupComesFirst(t *testing.T) {
	testnet.Enter(t)
	table, before := withAffinity(), open(t, NFT)
	sync(t, before, table)
	chains, err := before.helper.table.Chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range chains {
		if strings.HasPrefix(name, "program-") {
			if out, err := exec.Command("nft", "add", "chain", "inet", numbers.TableIPTables, "program-0;", "delete", "chain", "inet", numbers.TableIPTables, name).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	before.Close()

	after, looks := open(t, NFT), 0
	var kernel nft.Reader
	t.Cleanup(kernel.Close)
	rules := func(chain string) (n int) {
		if err := kernel.Rules(t.Context(), nft.Inet, numbers.TableIPTables, chain, func(nft.Rule) error { n++; return nil }); err != nil {
			t.Error(err)
		}
		return n
	}
	after.FailWrites(func() error {
		looks++
		for _, chain := range constantChains() {
			if rules("affinity-lookup-prerouting") > 0 && rules(chain) == 0 {
				t.Errorf("before write %d the program runs, and chain %s is empty", looks, chain)
			}
		}
		return nil
	})
	sync(t, after, table)
	if looks < 4 {
		t.Errorf("only %d writes", looks)
	}
}
