package enforcer

import (
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/testing/tabletest"
)

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
