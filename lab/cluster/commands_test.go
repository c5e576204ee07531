//go:build transcripts

package cluster_test

import "testing"

// TestCommands runs every command of both programs in a lab, and compares what it prints (see transcripts). TestSamples
// does it, in CI, with what they refuse.
func TestCommands(t *testing.T) {
	first(t, 3)
	w := newLab(t).transcripts()
	for _, file := range []string{"up", "look", "refused", "machines", "down"} {
		if !t.Run(file, func(t *testing.T) { w.sameDir(t).transcript(file) }) {
			return
		}
	}
}
