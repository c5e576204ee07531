// Package cluster brings one lab up and down, loads images into it and reports its status.
//
//	             ┌ fabric ┬─ control plane ─┐
//	Up ─ check ──┤        ├─ node-1 ────────┼─ images ─ deploy/ ─ nodes Ready ─ DNS answers
//	             └ pki ───┴─ node-N ────────┘
//	                     │
//	/var/lib/fairway-lab/lab.json  (the started processes)
//	                     │
//	Down ────────────────┘ kills, unmounts, removes
//
// The package knows the order in which the parts start, and the way to undo each of them. A failed Up removes its
// unfinished lab before it returns. Down removes the whole lab, whichever of its processes are still alive.
package cluster
