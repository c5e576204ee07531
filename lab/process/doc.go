// Package process starts programs that outlive their starter, remembers them
// so that they can be found again, and ends them.
//
//	up ── Start ──> control-plane      Record{pid 4711, started 88123}
//	                                        │
//	down ── Alive? Kill <── lab.json <──────┘
//
// It promises that a Record never means another process: a process id is
// used again sooner or later, but not together with the same start time.
package process
