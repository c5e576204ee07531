package enforcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/networkpolicy/nftables"
)

// A Source has the objects of the API server.
type Source interface {
	// Synced is closed when the first lists are complete. Dirty receives when an object changed.
	Synced() <-chan struct{}
	Dirty() <-chan struct{}
	// Take returns the names of the objects that changed since the last Take.
	Take() networkpolicy.Dirty
	Pod(api.Name) *api.Pod
	Policy(api.Name) *networkpolicy.Policy
	Namespace(string) *api.Namespace
	ClusterPolicy(string) *networkpolicy.ClusterPolicy
	Node(string) *networkpolicy.Node
}

// Config has the parts that an Enforcer works with. Log, Node, Source and Table are required.
type Config struct {
	Log    *slog.Logger
	Node   string
	Source Source
	Table  *nftables.Table
	// TablesChanged receives when another program may have changed the kernel's table. Nil: only a timer finds changes.
	TablesChanged <-chan struct{}
	// Socket is the path at which the CNI plugin asks. Empty: there is no socket.
	Socket string
	// End ends the connections for which denied returns true. Nil: no connection is ended.
	End func(ctx context.Context, denied func(networkpolicy.Packet) bool) (ended int, err error)
	// EmptyAfter is how long a first table that lacks most of what the kernel has is held back. 0: it is written at once.
	EmptyAfter time.Duration
	// ClusterEvent gets a problem of the whole cluster. Nil: the problem is only logged.
	ClusterEvent func(api.Problem)
	// Event tells the owner of a policy that it exceeds a limit or has unsupported parts. A ClusterNetworkPolicy has no
	// namespace. Nil: only the log says so.
	Event func(name api.Name, uid, reason, message string)
	// LogDenied logs denied packets with the names of pods and policies.
	LogDenied bool
	Metrics   *Metrics // nil: none
}

// An Enforcer enforces the policies of one node.
type Enforcer struct {
	Config
	requests chan request
	revoked  chan struct{}

	mu       sync.RWMutex // guards compiler, whose table Allows reads
	compiler *networkpolicy.Compiler
	first    firstTable
	table    *networkpolicy.Table // the table that the kernel holds; nil: none yet
	// byUID has sandboxes of a previous agent whose pod names were too long for the kernel's comment.
	byUID map[string]netip.Addr
	// reported are the limits that policies exceed; logged are denials, and when.
	reported  map[api.Name]string
	overPorts map[api.Name]bool // as reported
	logged    map[denial]time.Time
}

// resync is the time between two comparisons with the kernel without a change. It is a variable for tests.
var resync = 10 * time.Second

// Pauses.
const (
	firstRetry  = 200 * time.Millisecond
	maxRetry    = 10 * time.Second
	passTimeout = 20 * time.Second // for one pass
)

// New returns an Enforcer. It does not touch the kernel.
func New(cfg Config) *Enforcer {
	return &Enforcer{
		Config: cfg, first: newFirstTable(cfg.EmptyAfter), compiler: networkpolicy.New(cfg.Node), byUID: map[string]netip.Addr{},
		reported: map[api.Name]string{}, overPorts: map[api.Name]bool{}, logged: map[denial]time.Time{},
		requests: make(chan request), revoked: make(chan struct{}, 1),
	}
}

// Run works until ctx ends, in the network namespace of its thread. It returns nil then.
func (e *Enforcer) Run(ctx context.Context) error {
	defer e.Table.Close()
	if err := e.adopt(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	if e.Socket != "" {
		// The program is loaded, so the kernel can isolate the pod of a request.
		server, err := e.listen(ctx)
		if err != nil {
			return err
		}
		g.Go(func() error { return e.serve(ctx, server) })
	}
	if e.End != nil {
		g.Go(func() error { return e.endRevoked(ctx) })
	}
	g.Go(func() error { return e.loop(ctx) })
	return g.Wait()
}

// adopt loads the program, and takes over the sandboxes of a previous agent.
func (e *Enforcer) adopt(ctx context.Context) error {
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		step, cancel := context.WithTimeout(ctx, passTimeout)
		held, err := e.Table.Adopt(step)
		cancel()
		if err == nil {
			e.first.held = held
			for a, s := range held.Sandboxes {
				e.compiler.SetSandbox(a, &s)
				if s.Pod.Name == "" && s.UID != "" {
					e.byUID[s.UID] = a
				}
			}
			return nil
		}
		if ctx.Err() == nil {
			e.Log.Error("NetworkPolicies are not enforced yet, will try again", "err", err, "again", pause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

func (e *Enforcer) loop(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.Source.Synced():
	}
	pause := firstRetry
	timer := time.NewTimer(0)
	defer timer.Stop()
	var waiting []request
	var looked time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.Source.Dirty():
		case <-e.TablesChanged:
		case r := <-e.requests:
			waiting = append(waiting, e.accept(r)...)
		case <-timer.C:
		}
		err := e.reconcile(ctx)
		if now := time.Now(); err == nil && now.Sub(looked) >= resync {
			looked = now
			e.readCounters(ctx)
		}
		for _, r := range waiting {
			r.done <- err
		}
		waiting = nil
		switch {
		case err == nil:
			pause = firstRetry
			timer.Reset(resync)
			continue
		case errors.Is(err, errHeldBack):
			timer.Reset(min(lookAgain, e.EmptyAfter/4))
			continue
		}
		if ctx.Err() == nil {
			e.Log.Error("NetworkPolicies stay as they were, will try again", "err", err, "again", pause)
		}
		timer.Reset(pause)
		pause = min(2*pause, maxRetry)
	}
}

// accept passes a request, and all others that wait already, to the Compiler.
func (e *Enforcer) accept(r request) (all []request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		e.apply(r)
		all = append(all, r)
		select {
		case r = <-e.requests:
		default:
			return all
		}
	}
}

// reconcile makes the kernel hold the table of the objects.
func (e *Enforcer) reconcile(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	start := time.Now()
	e.mu.Lock()
	e.feed(e.Source.Take())
	want, changes := e.compiler.Compile()
	e.report()
	e.mu.Unlock()
	if e.holdBack(start, want) {
		return errHeldBack
	}
	// The Compiler is this goroutine's: nobody changes want meanwhile.
	written, err := e.Table.Sync(ctx, want, changes)
	e.Metrics.observePass(e.compiler, want, written, time.Since(start), err)
	if err != nil {
		return fmt.Errorf("enforce NetworkPolicies: %w", err)
	}
	e.mu.Lock()
	e.table = want
	e.compiler.Take()
	e.mu.Unlock()
	if written > 0 {
		e.Log.Debug("wrote NetworkPolicies", "elements", written, "took", time.Since(start))
	}
	if changes.Revoked || e.Table.Restored() { // packets may have passed while the table was damaged
		select {
		case e.revoked <- struct{}{}:
		default:
		}
	}
	return nil
}

// feed gives the changes to the Compiler. Namespaces come first, because a deleted policy still counts in a namespace
// that is being deleted.
func (e *Enforcer) feed(d networkpolicy.Dirty) {
	for _, n := range d.Namespaces {
		e.compiler.SetNamespace(n, e.Source.Namespace(n))
	}
	for _, n := range d.Policies {
		e.compiler.SetPolicy(n, e.Source.Policy(n))
	}
	for _, n := range d.Nodes {
		e.compiler.SetNode(n, e.Source.Node(n))
	}
	for _, n := range d.ClusterPolicies {
		p := e.Source.ClusterPolicy(n)
		e.compiler.SetClusterPolicy(n, p)
		e.reportUnsupported(p)
	}
	for _, n := range d.Pods {
		p := e.Source.Pod(n)
		e.compiler.SetPod(n, p)
		if p == nil || len(e.byUID) == 0 {
			continue
		}
		if a, ok := e.byUID[p.UID]; ok {
			e.compiler.SetSandbox(a, &networkpolicy.Sandbox{Pod: n, UID: p.UID})
			delete(e.byUID, p.UID)
		}
	}
}

// Allows reports whether NetworkPolicies allow a packet. Datapaths that carry packets in user space ask it. Before the
// first pass it allows nothing. Any goroutine may call it.
func (e *Enforcer) Allows(p networkpolicy.Packet) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.table != nil && networkpolicy.Lookup(e.table, p).Allowed()
}

// AllowsClient is Allows for connections of clients to endpoints, as package datapath asks.
func (e *Enforcer) AllowsClient(proto api.Proto, client netip.Addr, endpoint netip.AddrPort) bool {
	return e.Allows(networkpolicy.Packet{Src: client, Dst: endpoint.Addr(), Proto: proto, Port: endpoint.Port()})
}

// The pause between two searches of all connections is minPause, or pauseFactor times the length of the last search.
const (
	minPause    = 100 * time.Millisecond
	pauseFactor = 20
)

// endRevoked ends the connections that lost their grant.
func (e *Enforcer) endRevoked(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.revoked:
		}
		start := time.Now()
		step, cancel := context.WithTimeout(ctx, passTimeout)
		ended, err := e.End(step, func(p networkpolicy.Packet) bool { return !e.Allows(p) })
		cancel()
		e.Metrics.addEnded(ended)
		took := time.Since(start)
		pause := max(minPause, pauseFactor*took)
		switch {
		case err != nil && ctx.Err() == nil:
			e.Log.Error("connections that a NetworkPolicy forbids may go on, will try again", "err", err, "again", pause)
			select {
			case e.revoked <- struct{}{}:
			default:
			}
		case ended > 0:
			e.Log.Info("ended connections that NetworkPolicies do not allow any more", "connections", ended)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}
