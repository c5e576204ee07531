package fair

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestRest: the pause follows the length of a pass, within limits.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration]time.Duration{
			0: 100 * time.Millisecond, 10 * time.Millisecond: 100 * time.Millisecond,
			50 * time.Millisecond: 450 * time.Millisecond, time.Minute: time.Second,
		} {
			start := time.Now()
			if woken := Rest(t.Context(), took, nil); woken || time.Since(start) != want {
				t.Errorf("after a pass of %v: a pause of %v, urgent %v; want %v", took, time.Since(start), woken, want)
			}
		}
		start, urgent := time.Now(), make(chan struct{}, 1)
		urgent <- struct{}{}
		if !Rest(t.Context(), time.Second, urgent) || time.Since(start) != 0 {
			t.Errorf("an urgent change waited %v", time.Since(start))
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if Rest(ended, time.Second, nil) || time.Since(start) != 0 {
			t.Errorf("the end waited %v", time.Since(start))
		}
	})
}
