// Package process starts programs that outlive their starter, records them so that a later program finds them, and ends
// them.
//
//	up ── Start ──> control-plane      Record{pid 4711, started 88123}
//	                                        │
//	down ── Alive? Kill <── lab.json <──────┘
//
// It promises that a Record never refers to another process. The kernel reuses a PID sooner or later, but not together
// with the same start time.
package process
