//go:build transcripts

package cluster_test

import "testing"

// TestCommands runs every command of both programs in a lab, and compares the output (see transcripts). In CI,
// TestSamples does this, together with the commands that fail.
func TestCommands(t *testing.T) {
	first(t, 3)
	w := newLab(t).transcripts()
	for _, file := range []string{"up", "look", "refused", "machines", "down"} {
		if !t.Run(file, func(t *testing.T) { w.sameDir(t).transcript(file) }) {
			return
		}
	}
}
