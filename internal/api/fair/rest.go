package fair

import (
	"context"
	"time"
)

// The pause after a pass is restFactor times as long as the pass, so that a loop uses a tenth of a core at most. After
// passes of more than a ninth of a second the loop uses more, because a change must not wait longer than maxRest.
const (
	minRest    = 100 * time.Millisecond
	maxRest    = time.Second
	restFactor = 9
)

// Rest waits after a pass over objects that others change, in proportion to the time that the pass took: 0.1 to 1 s. The
// first change after a quiet time therefore waits for nothing. An urgent change ends the wait, and Rest takes it from
// the channel and returns true. urgent may be nil.
func Rest(ctx context.Context, took time.Duration, urgent <-chan struct{}) bool {
	timer := time.NewTimer(min(max(minRest, restFactor*took), maxRest))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-urgent:
		return true
	}
	return false
}
