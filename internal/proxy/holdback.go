package proxy

import (
	"fmt"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// lookAgain is the most that is waited before a table that lacks most is looked at again.
const lookAgain = 5 * time.Second

// holdBack returns how long to wait before the first table may be programmed; 0: now. A loop
// that starts remembers nothing of the cluster, but the kernel does: a table that lacks most
// of the frontends that the kernel carries is doubted as a list is that lacks most objects.
func (l *Loop) holdBack(now time.Time) time.Duration {
	if l.adoptedTable == nil {
		return 0
	}
	wanted := map[service.Key]bool{}
	for f := range l.table.Frontends() {
		wanted[f.Key()] = true
	}
	had, kept := 0, 0
	for f := range l.adoptedTable.Frontends() {
		had++
		if wanted[f.Key()] {
			kept++
		}
	}
	doubted := l.brake.Holds()
	if l.brake.Believe(now, had, kept, false) {
		l.adoptedTable = nil
		l.cfg.Metrics.retained.Set(0)
		return 0
	}
	if !doubted {
		l.cfg.Log.Error("the API server has none of most frontends that the kernel carries; the rules stay as they are for a while "+
			"[was it restored, or is --master wrong? --empty-after says how long]", "had", had, "missing", had-kept, "for", l.brake.Bound)
		l.cfg.Event(api.Name{Namespace: "default", Name: "kubernetes"}, api.Problem{
			Reason: "ListLostObjects", Message: fmt.Sprintf("the API server has none of most frontends that a node carried when its agent started; the node keeps them for %v", l.brake.Bound),
		})
	}
	l.cfg.Metrics.retained.Set(float64(had - kept))
	return min(lookAgain, l.brake.Bound/4)
}
