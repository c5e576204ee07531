package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// lookAgain is the longest pause before the loop examines a doubtful first table again.
const lookAgain = 5 * time.Second

// firstTable is the state of the loop until its first table is written.
type firstTable struct {
	adopted bool           // Flows knows the rules that the kernel had at the start
	table   *service.Table // these rules, until the loop believes its first table. Nil if not known
	brake   api.Brake
}

// adopt gives Flows the rules that the kernel had at the start.
func (l *Loop) adopt(ctx context.Context) {
	if l.first.adopted {
		return
	}
	l.first.adopted = true
	held, err := l.cfg.Datapath.Adopt(ctx)
	if err != nil {
		return // Sync will report the same error
	}
	l.first.table = held.Table
	l.cfg.Flows.Adopted(held.Table)
}

// holdBack returns the pause before the first table may be written; 0: write it now. The loop remembers nothing of the
// cluster at its start, but the kernel does. A first table that lacks most of the kernel's frontends is therefore
// doubtful, like a list that lacks most objects.
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
	if l.first.brake.Believe(now, had, kept) {
		l.first.table = nil
		l.cfg.Metrics.retained.Set(0)
		return 0
	}
	if !doubted {
		l.cfg.Log.Error("the API server lacks most frontends that the kernel carries, the rules stay unchanged for now "+
			"[was it restored, or is --master wrong? --empty-after sets the time]", "had", had, "missing", had-kept, "for", l.first.brake.Bound)
		l.cfg.Event(api.Name{Namespace: "default", Name: "kubernetes"}, api.Problem{
			Reason: "ListLostObjects", Message: fmt.Sprintf("the API server lacks most frontends that a node carried when its agent started; the node keeps them for %v", l.first.brake.Bound),
		})
	}
	l.cfg.Metrics.retained.Set(float64(had - kept))
	return min(lookAgain, l.first.brake.Bound/4)
}
