package conformance

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// Spoofed sends SYNs from 5,000 addresses to a Service with affinity. remembered runs on the node, and returns how many
// clients the kernel remembers. The Service gets no more than its share for its fifth port. Old and new clients of
// another Service stay at their endpoints, also after a restart, and clients of the flooded Service get answers. nft
// can list the ruleset. When the Service is removed, its clients are too.
func Spoofed(t *testing.T, open Open, remembered func() (int, error)) {
	const many, share, lasts = 5000, 256, 3 * time.Hour
	r := sixRig(t, newSuite(t, open))
	victim := web("victim", "10.96.0.70:80", api.TCP, 0, 1, 2, 3, 4, 5)
	all := []*service.Frontend{victim}
	for i := range 5 { // the fifth port has a smaller share
		f := web("tenant", fmt.Sprintf("10.96.0.1:%d", 91+i), api.TCP, 0, 1, 2, 3, 4, 5)
		f.Service.Port = fmt.Sprint("port-", i)
		all = append(all, f)
	}
	for _, f := range all {
		f.Affinity = lasts
	}
	w := &scenario.World
	table := tableOf(all...)
	report(t, r.sync(table))
	clients := []*testnet.Host{r.hosts[w.Pod.V4], r.node, r.hosts[w.Outside.V4], r.hosts[w.Peer.V4]}
	home := map[*testnet.Host]netip.AddrPort{}
	for _, c := range clients[:2] {
		home[c] = r.awaitAffinity(t, c, "tcp", "10.96.0.70:80")
		r.awaitAffinity(t, c, "tcp", "10.96.0.1:95")
	}
	r.hosts[w.Pod.V4].Flood(netip.MustParseAddrPort("10.96.0.1:95"), many)
	count := func() (n int) {
		report(t, r.node.Do(func() (err error) { n, err = remembered(); return err }))
		return n
	}
	if n := count(); n < share/2 || n > share+2*len(clients) {
		t.Errorf("%d addresses: the kernel remembers %d clients, want up to %d", many, n, share)
	}
	report(t, r.node.Do(func() error {
		if out, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").CombinedOutput(); err != nil {
			return fmt.Errorf("nft list ruleset: %w: %s", err, out[max(0, len(out)-300):])
		}
		return nil
	}))
	for _, c := range clients[2:] {
		home[c] = r.awaitAffinity(t, c, "tcp", "10.96.0.70:80")
	}
	report(t, r.restart(table))
	for _, c := range clients {
		if now := r.awaitAffinity(t, c, "tcp", "10.96.0.70:80"); now != home[c] {
			t.Errorf("%s moved from %v to %v", c.Name, home[c], now)
		}
		r.awaitAffinity(t, c, "tcp", "10.96.0.1:95")
	}
	report(t, r.sync(tableOf(victim)))
	for end := time.Now().Add(time.Minute); count() > len(clients); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the Service is gone, and the kernel remembers %d clients", count())
		}
	}
	for _, c := range clients {
		if now := r.awaitAffinity(t, c, "tcp", "10.96.0.70:80"); now != home[c] {
			t.Errorf("%s moved from %v to %v when another Service was removed", c.Name, home[c], now)
		}
	}
}
