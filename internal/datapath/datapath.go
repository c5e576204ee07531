// Package datapath is the contract between the policy and a kernel mechanism.
//
//	*service.Table ── Sync ──→ ┌───────────┐
//	                           │  kernel   │ ←── packets
//	*service.Table ←── Dump ── └───────────┘
//
// A mechanism (nftables, later iptables, ipvs, ebpf, userspace) is a package beside
// this one. It hides how a Table becomes kernel objects and promises three verbs,
// which the suite in conformance/ holds every mechanism to with real packets.
package datapath

import (
	"context"

	"github.com/fairway-net/fairway/internal/service"
)

// A Datapath makes one kernel mechanism behave like a Table. It belongs to one
// goroutine, which stays in one network namespace: the one that it works on. It starts
// no goroutine; only a Carrier (userspace) does, from its first Sync to Close.
type Datapath interface {
	// Name is the mechanism's name as in --proxy-mode: "nftables".
	Name() string
	// Algorithms are those that it can do; Random is always one of them.
	Algorithms() service.Algorithms
	// Sync makes the kernel do what want says. It is atomic for each frontend,
	// idempotent, and safe to repeat after any error: it then starts from what the
	// kernel really holds. The first Sync of a process adopts what an earlier one
	// left and writes only what differs.
	Sync(ctx context.Context, want *service.Table) (Stats, error)
	// Check reports whether the kernel still holds what the last Sync left, as far as
	// can be told cheaply: it is called every few seconds. After false the next Sync
	// puts right what another hand has changed.
	Check(ctx context.Context) (intact bool, err error)
	// Dump reads back what the kernel does now, in the words of a Table.
	Dump(ctx context.Context) (*service.Table, error)
	// Cleanup removes every trace. It is not an error if there is none.
	Cleanup(ctx context.Context) error
	// Close gives back what the datapath holds in this process: sockets and memory.
	// What the kernel does stays. A closed datapath may be used again, and then starts
	// from what the kernel holds.
	Close()
}

// Stats says what a Sync did.
type Stats struct {
	Frontends int  // frontends that changed
	Added     int  // kernel elements added
	Deleted   int  // kernel elements deleted
	Full      bool // everything was compared with the kernel, not with the last table
}

// A Prober can say what keeps it from working here: no rights, a kernel without it, a
// program that is not installed. It changes nothing.
type Prober interface{ Probe() error }

// A Releaser is a datapath whose established connections need more than conntrack's
// entries to live on. Others can just be cleaned up when another one has taken over.
type Releaser interface {
	// Release gives the node to another datapath, which is in place: from now on this one
	// takes no new connection. It keeps what established ones need, and takes away what
	// none needs any more each time it is called; done says that no trace is left.
	Release(ctx context.Context) (done bool, err error)
}

// A Finder can say whether it has been at work on this node, which others find out by
// Dump. A mechanism must have it whose rules look like somebody else's: kube-proxy's
// chains are not ours.
type Finder interface {
	Found(ctx context.Context) (bool, error)
}

// A Carrier carries connections itself, in this process, so that conntrack alone cannot
// end them.
type Carrier interface {
	// Cut ends the connections and flows of the given kind to endpoints that are gone, and
	// says how many those were. Unlike the others it may be called by any goroutine: who
	// asks first whether an endpoint is gone must not make the loop wait.
	Cut(ctx context.Context, flows []service.Flow) (int, error)
}

// A Counter counts what it carried.
type Counter interface {
	// Counts returns what was carried since the rules were loaded, for each Service port.
	Counts(ctx context.Context) (map[service.PortName]Count, error)
}

// A Count is what one Service port carried. Connections, Packets and Bytes (of both
// directions where the mechanism can tell) may be 0 where they are not counted.
type Count struct{ Connections, Packets, Bytes, Rejects, Drops uint64 }
