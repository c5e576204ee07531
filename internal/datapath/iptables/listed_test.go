package iptables

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestListed: nft lists the rules that remember clients. It aborts on what it cannot say, and takes the
// user's whole listing with it.
func TestListed(t *testing.T) {
	testnet.Enter(t)
	var all []*service.Frontend
	for i := range nftset.FullLists + 1 { // the last list has few buckets
		f := numbered(1, 3).Frontends[0]
		f.Addr, f.Service.Port, f.Affinity = netip.AddrPortFrom(f.Addr.Addr(), uint16(80+i)), fmt.Sprint("p", i), 3*time.Hour
		all = append(all, f)
	}
	sync(t, open(t, NFT), service.NewTable(settings(), all))
	out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatalf("nft list ruleset: %v, and the end of %d bytes is:\n%s", err, len(out), out[max(0, len(out)-300):])
	}
	for _, chain := range []string{"affinity-update-10800", "affinity-renew-10800", "affinity-update-few-10800", "affinity-renew-few-10800"} {
		_, rules, found := strings.Cut(string(out), "chain "+chain+" {")
		rules, _, _ = strings.Cut(rules, "}\n\n")
		t.Logf("%s: %s", chain, rules)
		if !found || !strings.Contains(rules, "update @affinity-buckets4") || !strings.Contains(rules, "update @affinity-buckets6") {
			t.Errorf("%s: nft lists %q", chain, rules)
		}
	}
}
