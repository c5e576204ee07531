package command

import (
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/proxy/health"
)

// Written sets the parts of a status that say whether the rules are written. It returns why the last pass failed, or "".
func Written(n *status.Node, v health.Verdict) (failed string) {
	n.InSync, n.Since, n.Time = v.Queued.IsZero() && !v.Synced.IsZero(), v.Queued, v.Now
	if n.InSync {
		n.Since = v.Synced
	}
	n.Drift = status.Drift{Restored: v.Restored, Last: v.LastRestored}
	if v.Failed != nil {
		failed = v.Failed.Error()
	}
	return failed
}
