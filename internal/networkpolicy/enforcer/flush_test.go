package enforcer

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/tabletest"
)

// firewall is what a firewall such as nftables.service loads. The kernel tracks connections for its rule.
const firewall = "flush ruleset; add table inet firewall; " +
	"add chain inet firewall forward { type filter hook forward priority 0; }; add rule inet firewall forward ct state invalid drop"

// TestFlushedConnections: a connection that began while the table was gone ends when the table is there again.
func TestFlushedConnections(t *testing.T) {
	was := resync
	t.Cleanup(func() { resync = was })
	resync = time.Hour
	r := newRig(t)
	web, stranger := r.host("web", 10), r.host("stranger", 11)
	r.is("web", "web", "node-1", 1, web.Addrs...)
	r.is("stranger", "stranger", "node-1", 1, stranger.Addrs...)
	r.isolates("web", "client")
	r.written()
	r.talks("before", stranger, web, false)
	err := r.node.Do(func() error { return exec.CommandContext(t.Context(), "nft", firewall).Run() })
	if err != nil {
		t.Fatal(err)
	}
	all := r.open(stranger, web)
	tabletest.Start(t, r.node.Do, &r.tables) // its first hint makes the agent look
	for _, c := range all {
		if err := c.Wait(20 * time.Second); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a connection from when the table was gone ends with %v, want a reset", err)
		}
	}
	r.talks("after", stranger, web, false)
}

// TestFlush: a table that another program removes is there again within a second, without a timer.
func TestFlush(t *testing.T) {
	was := resync
	t.Cleanup(func() { resync = was })
	resync = time.Hour
	r := newRig(t)
	r.pod("web", webAddr, nil)
	r.source.setPolicy(denyAll, &networkpolicy.Policy{Name: denyAll, Isolates: [2]bool{true, true}})
	r.written()
	tabletest.Start(t, r.node.Do, &r.tables)
	tabletest.Flush(t, r.node.Do, numbers.TablePolicy)
}
