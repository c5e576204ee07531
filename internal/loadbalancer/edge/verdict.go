package edge

import "github.com/fairway-net/fairway/internal/service"

// A verdict is what counts of the answers of one target. The zero value has none.
type verdict struct {
	counts service.ProbeResult // what counts now
	// streak is how many answers in a row were good where bad counts, or bad where good does.
	streak int
}

// add takes an answer and reports whether something else counts now. The first answer counts at
// once. Failing and silent are both bad: a change between them needs no threshold, for the node
// is out either way.
func (v *verdict) add(r service.ProbeResult, c Checks) (changed bool) {
	was := v.counts
	good := r.State == service.Passing
	if was.State == service.Unprobed || good == (was.State == service.Passing) {
		v.counts, v.streak = r, 0
		return v.counts != was
	}
	v.streak++
	threshold := c.Unhealthy
	if good {
		threshold = c.Healthy
	}
	if v.streak < threshold {
		return false
	}
	v.counts, v.streak = r, 0
	return true
}
