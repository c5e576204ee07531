// Package health tells load balancers, kubelets, people and Prometheus over HTTP whether this node may be used. It has
// the ports and the answers of kube-proxy.
//
//	proxy loop ─ Queued, Synced ─→ State ─→ :10256 /healthz  may load balancers use the node?
//	proxy loop ─ Beat ─────────────┘  └───→ :10256 /livez    is the loop alive?
//	API server ─ node eligible ───────────→ :10256 /healthz
//	registry ────────────────────────────→ :10249 /metrics /proxyMode /healthz
//	applied table ───────────────────────→ healthCheckNodePorts: endpoints of a Service here?
//
// The package promises:
//   - The agent is healthy while no change waits longer than the timeout, even if nothing changes for a long time.
//   - A node that is about to be deleted fails /healthz, so that load balancers leave it.
//   - Rules that cannot be written fail /healthz. Neither case fails /livez, because a restart would not help, and one
//     object that cannot be written would restart the agents of all nodes.
//   - /livez fails when the loop hangs.
//   - Only configured ports are open. The number of clients and their time are limited.
//   - A port in use is one clear error at the start. A Service's port that cannot be opened affects only that Service.
package health

import (
	"fmt"
	"sync"
	"time"
)

// A State is the state that the proxy loop reports. Its methods may be called by any goroutine.
type State struct {
	timeout time.Duration
	now     func() time.Time

	mu     sync.Mutex
	synced time.Time // the last success; zero: none yet
	queued time.Time // when the oldest pending change began to wait; zero: no change waits
	beat   time.Time // last sign of life of the loop; zero: the loop has not begun
	failed error     // error of the last pass; nil: it succeeded
	// restored counts the repairs after another program changed the rules.
	restored     int
	lastRestored time.Time
}

// hangs is the time without Beat after which the loop counts as hanging. It is far above the longest measured pass
// (10,000 new Services in mode iptables: 41 s) and above the deadlines of the programs that a pass starts.
const hangs = 5 * time.Minute

// NewState returns the healthy State of a loop that has not started. timeout is the time that a change may wait:
// kube-proxy's 2*syncPeriod.
func NewState(timeout time.Duration) *State { return newState(timeout, time.Now) }

func newState(timeout time.Duration, now func() time.Time) *State {
	return &State{timeout: timeout, now: now}
}

// Queued notes that a change is pending.
func (s *State) Queued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued.IsZero() {
		s.queued = s.now()
	}
}

// Synced notes that no change is pending.
func (s *State) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued, s.failed = time.Time{}, nil
	s.synced = s.now()
}

// Failed notes that a pass failed and will be tried again.
func (s *State) Failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
}

// Restored notes that another program changed the rules and that the loop restores them.
func (s *State) Restored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restored++
	s.lastRestored = s.now()
}

// Beat notes that the loop is alive. The loop calls it at its start and then at every turn, at least every few seconds.
// Each pass is one turn, whether it succeeds or not. A State without Beat is live, because mode none has no loop.
func (s *State) Beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beat = s.now()
}

// A Verdict is the condition of a State at one moment.
type Verdict struct {
	Healthy bool      // no change waits for too long
	Live    bool      // the loop is alive
	Synced  time.Time // the last success; zero: none yet
	Now     time.Time
	Queued  time.Time // when the oldest pending change began to wait; zero: no change waits
	Failed  error     // error of the last pass; nil: it succeeded
	// Restored counts the repairs after another program changed the rules.
	Restored     int
	LastRestored time.Time
}

// Reason says in a few words why the Verdict is not Healthy. Anybody who reaches the node may read it, so it never
// contains the text of an error.
func (v Verdict) Reason() string {
	switch {
	case !v.Live:
		return "the agent's loop hangs"
	case v.Healthy:
		return ""
	case v.Failed != nil:
		return fmt.Sprintf("the rules could not be written for %v", v.Now.Sub(v.Queued).Round(time.Second))
	}
	return fmt.Sprintf("a change has waited for %v to be written", v.Now.Sub(v.Queued).Round(time.Second))
}

// Verdict returns the current condition. kube-proxy is healthy until its first success, even if that never comes. Here
// a first pass that fails for too long counts like a later pass. While the API server cannot be reached, no change is
// pending, and the node stays healthy.
func (s *State) Verdict() Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	late := !s.queued.IsZero() && now.Sub(s.queued) >= s.timeout
	hung := !s.beat.IsZero() && now.Sub(s.beat) >= hangs
	return Verdict{
		Healthy: !late, Live: !hung, Synced: s.synced, Now: now,
		Queued: s.queued, Failed: s.failed, Restored: s.restored, LastRestored: s.lastRestored,
	}
}
