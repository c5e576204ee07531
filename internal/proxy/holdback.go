package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// lookAgain is the most that is waited before a table that lacks most is looked at again.
const lookAgain = 5 * time.Second

// firstTable is what the loop remembers until the first table is programmed.
type firstTable struct {
	adopted bool           // Flows knows the rules that the kernel had at the start
	table   *service.Table // these rules, until the loop believes its first table; nil: not known
	brake   service.Brake
}

// adopt gives Flows the rules that were there before the first pass.
func (l *Loop) adopt(ctx context.Context) {
	if l.first.adopted {
		return
	}
	l.first.adopted = true
	held, err := l.cfg.Datapath.Adopt(ctx)
	if err != nil {
		return // Sync will meet the same error, and report it
	}
	l.first.table = held.Table
	l.cfg.Flows.Adopted(held.Table)
}

// holdBack returns how long to wait before the first table may be programmed; 0: now. A loop
// that starts remembers nothing of the cluster, but the kernel does: a table that lacks most
// of the frontends that the kernel carries is doubted as a list is that lacks most objects.
func (l *Loop) holdBack(now time.Time) time.Duration {
	if l.first.table == nil {
		return 0
	}
	wanted := map[service.Key]bool{}
	for f := range l.table.Frontends() {
		wanted[f.Key()] = true
	}
	had, kept := 0, 0
	for f := range l.first.table.Frontends() {
		had++
		if wanted[f.Key()] {
			kept++
		}
	}
	doubted := l.first.brake.Holds()
	if l.first.brake.Believe(now, had, kept, false) {
		l.first.table = nil
		l.cfg.Metrics.retained.Set(0)
		return 0
	}
	if !doubted {
		l.cfg.Log.Error("the API server has none of most frontends that the kernel carries; the rules stay as they are for a while "+
			"[was it restored, or is --master wrong? --empty-after says how long]", "had", had, "missing", had-kept, "for", l.first.brake.Bound)
		l.cfg.Event(api.Name{Namespace: "default", Name: "kubernetes"}, api.Problem{
			Reason: "ListLostObjects", Message: fmt.Sprintf("the API server has none of most frontends that a node carried when its agent started; the node keeps them for %v", l.first.brake.Bound),
		})
	}
	l.cfg.Metrics.retained.Set(float64(had - kept))
	return min(lookAgain, l.first.brake.Bound/4)
}
