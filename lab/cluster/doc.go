// Package cluster is the life of one lab: up, status, load, down.
//
//	             ┌ fabric ┬─ control plane ─┐
//	Up ─ check ──┤        ├─ node-1 ────────┼─ images ─ deploy/ ─ nodes Ready ─ DNS answers
//	             └ pki ───┴─ node-N ────────┘
//	                     │
//	/var/lib/fairway-lab/lab.json  (what was started)
//	                     │
//	Down ────────────────┘ kills, unmounts, removes
//
// It hides in which order the parts are made and how each is undone. It
// promises that what Up could not finish is removed before Up returns, and
// that Down leaves nothing, whichever process of the lab is still alive.
package cluster
