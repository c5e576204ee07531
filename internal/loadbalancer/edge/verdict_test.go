package edge

import (
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/service"
)

// TestVerdict: answers, a letter each, and what counts after each of them: P passing, F failing,
// S silent.
func TestVerdict(t *testing.T) {
	letters := map[byte]service.ProbeState{'P': service.Passing, 'F': service.Failing, 'S': service.Silent}
	for _, c := range []struct{ answers, counts, why string }{
		{"PPFPFFPFFF", "PPPPPPPPPF", "three bad ones in a row take a node out"},
		{"PFSF", "PPPF", "of either kind"},
		{"FPFPP", "FFFFP", "two good ones bring it back; the first answer counts at once"},
		{"SFSPP", "SFSSP", "between bad and bad there is no threshold"},
		{"PFFPFF", "PPPPPP", "a good one among them begins anew"},
	} {
		var v verdict
		var counts strings.Builder
		for i := range len(c.answers) {
			before := v.counts
			if changed := v.add(service.ProbeResult{State: letters[c.answers[i]]}, Checks{Healthy: 2, Unhealthy: 3}); changed != (v.counts != before) {
				t.Errorf("%s: answer %d: changed is %v", c.answers, i, changed)
			}
			counts.WriteByte(" PFS"[v.counts.State])
		}
		if counts.String() != c.counts {
			t.Errorf("%s counts as %s, want %s: %s", c.answers, counts.String(), c.counts, c.why)
		}
	}
}

// TestVerdictWeight: another weight of a node that passes counts at once.
func TestVerdictWeight(t *testing.T) {
	var v verdict
	c := Checks{Healthy: 2, Unhealthy: 3}
	v.add(service.ProbeResult{State: service.Passing, Weight: 1}, c)
	v.add(service.ProbeResult{State: service.Failing}, c)
	if !v.add(service.ProbeResult{State: service.Passing, Weight: 4}, c) || v.counts.Weight != 4 || v.streak != 0 {
		t.Errorf("%+v", v)
	}
}
