// Package health answers over HTTP whether this node may be used, to load balancers,
// kubelets, people and Prometheus. It listens where kube-proxy does and
// answers as kube-proxy does.
//
//	proxy loop ─ Queued, Synced ─→ State ─→ :10256 /healthz  may load balancers use the node?
//	proxy loop ─ Beat ─────────────┘  └───→ :10256 /livez    does the loop still turn?
//	API server ─ node eligible ───────────→ :10256 /healthz
//	registry ────────────────────────────→ :10249 /metrics /proxyMode /healthz
//	applied table ───────────────────────→ healthCheckNodePorts: endpoints of a Service here?
//
// It hides kube-proxy's JSON and its rules. It promises: the agent is healthy as long
// as no change waits longer than the timeout, however long nothing changes; a node
// that is about to be deleted fails /healthz, so that load balancers leave it; rules that
// cannot be written fail /healthz too, but neither fails /livez: a restart would not help, and
// one object that cannot be programmed would restart the agents of all nodes; /livez fails
// when the loop hangs; nothing listens that is not configured; clients are bounded in number
// and in time; a port in use is one clear error at the start; and the port of a Service that
// cannot be opened is that Service's trouble only.
package health

import (
	"fmt"
	"sync"
	"time"
)

// A State is what the proxy loop reports of itself. Its methods may be called by any
// goroutine.
type State struct {
	timeout time.Duration
	now     func() time.Time

	mu     sync.Mutex
	synced time.Time // the last success; zero: none yet
	queued time.Time // since when a change waits; zero: none does
	beat   time.Time // when the loop last said that it turns; zero: it has not begun
	failed error     // what the last pass failed with; nil: it did not
	// restored counts how often the rules were restored after another program changed them.
	restored     int
	lastRestored time.Time
}

// hangs is the time without Beat after which the loop is taken to hang. It is far above the
// longest pass that was measured (10,000 Services from nothing in mode iptables: 41 s) and the
// deadlines of the programs that a pass starts.
const hangs = 5 * time.Minute

// NewState returns the State of a loop that has not started: it is healthy. timeout is
// how long a change may wait, kube-proxy's 2*syncPeriod.
func NewState(timeout time.Duration) *State { return newState(timeout, time.Now) }

func newState(timeout time.Duration, now func() time.Time) *State {
	return &State{timeout: timeout, now: now}
}

// Queued notes that a change waits to be programmed.
func (s *State) Queued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued.IsZero() {
		s.queued = s.now()
	}
}

// Synced notes that no change waits any more.
func (s *State) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued, s.failed = time.Time{}, nil
	s.synced = s.now()
}

// Failed notes that a pass failed, and will be tried again.
func (s *State) Failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
}

// Restored notes that another program has changed the rules, and that they are restored.
func (s *State) Restored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restored++
	s.lastRestored = s.now()
}

// Beat notes that the loop turns. The loop calls it when it begins, and then each time it
// gets round, which is every few seconds also when nothing changes. A pass, however it ends,
// counts as one turn. A State without Beat is live: there is no loop in mode none.
func (s *State) Beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beat = s.now()
}

// A Verdict is how a State is at one moment.
type Verdict struct {
	Healthy bool      // no change waits for too long
	Live    bool      // the loop turns
	Synced  time.Time // the last success; zero: none yet
	Now     time.Time
	Queued  time.Time // since when a change waits; zero: none does
	Failed  error     // what the last pass failed with; nil: it did not
	// Restored is how often another program's changes of the rules were undone.
	Restored     int
	LastRestored time.Time
}

// Reason says in a few words why the Verdict is not Healthy. Anybody who reaches the node
// may read it: it has no text of an error.
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

// Verdict judges. kube-proxy calls itself healthy until its first success, for ever if
// there is none; here a first pass that fails for too long is as bad as a later one.
// Nothing is queued while the API server cannot be reached, which is not this node's
// fault.
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
