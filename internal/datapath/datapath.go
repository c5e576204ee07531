// Package datapath is the contract between the Services' tables and the mechanisms of the kernel.
//
//	*service.Table ── Sync ──→ ┌───────────┐
//	                           │  kernel   │ ←── packets
//	*service.Table ←─ Adopt ── └───────────┘
//
// Each mechanism (nftables, iptables, ipvs, userspace) is a package in this folder, which turns a Table into kernel
// objects. The suite in internal/testing/conformance tests every mechanism against the contract, with real packets. The
// capabilities of a mechanism are data (Info). Every method is required, so no caller asserts a second interface.
package datapath

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
)

// A Datapath makes one kernel mechanism behave like a Table. It belongs to one goroutine, except Info. That goroutine
// stays in one network namespace, on which the datapath works. Every method that asks the kernel ends when its context
// ends.
type Datapath interface {
	// Info returns the mechanism's name and capabilities. They are constant, and Info does not ask the kernel.
	Info() Info
	// Probe returns the reason why the mechanism cannot work here: missing rights, a kernel without it, a program that is
	// not installed. It changes nothing.
	Probe(ctx context.Context) error
	// Adopt reads the rules that the kernel has, and changes nothing. The first Sync of the datapath uses the result and
	// does not read the rules again.
	Adopt(ctx context.Context) (Adopted, error)
	// Sync makes the kernel equal to the table want. It is atomic for each frontend and idempotent. After an error it may be
	// repeated, and then starts from the rules that the kernel really has. The first Sync of a process takes over the
	// rules of an earlier process and writes only the differences. Stats count the work done, also with an error.
	Sync(ctx context.Context, want *service.Table) (Stats, error)
	// Check reports whether another program has changed the rules of the last Sync, as far as a cheap test can find out:
	// it is called every few seconds. After a Drift the next Sync repairs the rules.
	Check(ctx context.Context) (Drift, error)
	// Explain returns the current kernel objects of the frontend with that key; none if there is no such frontend. It
	// changes nothing.
	Explain(ctx context.Context, k service.Key) ([]Object, error)
	// Counts returns the traffic of each Service port since the rules were loaded. Capabilities.Counts names the fields
	// that have a value.
	Counts(ctx context.Context) (map[api.PortName]Count, error)
	// Ejected returns the endpoints that get no connections for a while, because they failed connections of this node,
	// sorted. A mechanism that does not see connections fail returns none.
	Ejected(ctx context.Context) ([]Ejection, error)
	// EndFlows ends those of the flows that pass through this process, with the contract of flow.Ender. Conntrack cannot
	// end them. Without Capabilities.CarriesFlows there are none.
	EndFlows(ctx context.Context, flows []flow.Flow) (flow.Result, error)
	// Drain gives the node to another datapath that is in place: this datapath takes no new connection. It keeps the
	// objects of established connections. Each call removes the objects that no connection needs any more. When done is
	// true, nothing of this datapath is left.
	Drain(ctx context.Context) (done bool, err error)
	// Cleanup removes everything of this datapath from the kernel, also objects of established connections. It is no error
	// if there is nothing.
	Cleanup(ctx context.Context) error
	// Close frees the sockets, goroutines and memory of the datapath in this process. The rules in the kernel stay. A
	// closed datapath is not used again.
	Close()
}

// Info describes a datapath. It is constant.
type Info struct {
	Name         string // the mode's name as in --proxy-mode: "nftables"
	Capabilities Capabilities
	// Program is the constant ruleset as nft text; empty if the mechanism has none.
	Program string
}

// Capabilities describe the abilities of a mechanism.
type Capabilities struct {
	// Algorithms are the balancing algorithms; Random is always one of them.
	Algorithms service.Algorithms
	// Protocols are the protocols that the mechanism forwards. Ports of other protocols are rejected.
	Protocols []api.Proto
	// Counts are the fields of Count that have a value.
	Counts Counted
	// Affinity says which frontends of a Service port share their memory of clients.
	Affinity AffinityScope
	// CarriesFlows says that connections pass through this process, so that EndFlows can end them.
	CarriesFlows bool
}

// Counted is a set of the fields of Count. The zero value is empty.
type Counted uint8

// The fields of Count.
const (
	CountsConnections Counted = 1 << iota
	CountsPackets
	CountsBytes
	CountsRejects
	CountsDrops
)

// AffinityScope says which frontends share a client's affinity.
type AffinityScope uint8

// The scopes. kube-proxy's is AffinityPerPort.
const (
	// AffinityPerPort: a client gets the same endpoint at every address of a Service port.
	AffinityPerPort AffinityScope = iota
	// AffinityPerFrontend: each address remembers its own clients.
	AffinityPerFrontend
)

// Adopted is the result of Adopt.
type Adopted struct {
	// Table describes the rules of the kernel. It is never nil.
	Table *service.Table
	// Found says that this datapath has worked on the node, in this process or in an earlier one. Rules that only look
	// like ours, such as kube-proxy's, do not count.
	Found bool
}

// Stats describe the work of a Sync.
type Stats struct {
	Frontends int  // frontends that changed
	Added     int  // kernel elements added
	Deleted   int  // kernel elements deleted
	Full      bool // compared with the kernel, not only with the last table
	// Differs describes rules that the kernel repeatedly holds in another form than written; empty: none. Only a Full
	// Sync sets it.
	Differs string
}

// Drift describes the changes of another program. The zero value is no drift.
type Drift struct {
	// Rules says that rules or chains differ. Elements says that data differs: elements of sets and maps, or virtual
	// servers.
	Rules, Elements bool
	// Retry says that no program changed anything, but it is time to write the differences of the last Sync again
	// (Stats.Differs).
	Retry bool
}

// Any reports whether anything differs.
func (d Drift) Any() bool { return d.Rules || d.Elements || d.Retry }

// An Object is a kernel object behind a frontend.
type Object struct {
	Kind string `json:"kind"` // "map element", "set element", "chain", "rule", "virtual server", "listener"
	Name string `json:"name"` // its place: "inet fairway frontends4"
	Text string `json:"text"` // its content, as the mechanism's own tool prints it
}

// A Count is the traffic of one Service port.
type Count struct{ Connections, Packets, Bytes, Rejects, Drops uint64 }

// An Ejection is an endpoint that gets no connections for a while. Programs read its JSON, so the fields stay.
type Ejection struct {
	Endpoint netip.AddrPort `json:"endpoint"` // of TCP
	Reason   string         `json:"reason"`   // "refused", "no answer"
	Since    time.Time      `json:"since"`
	Until    time.Time      `json:"until"` // then a connection tries the endpoint
	InARow   int            `json:"inARow"`
}

// FrontKey returns the key of a frontend as nft prints it in our maps: "10.96.0.10 . udp . 53", or "tcp . 30080" for a
// NodePort.
func FrontKey(k service.Key) string {
	text := fmt.Sprintf("%s . %d", strings.ToLower(k.Proto.String()), k.Addr.Port())
	if k.Addr.Addr().IsUnspecified() {
		return text
	}
	return k.Addr.Addr().String() + " . " + text
}

// Tracked is embedded by mechanisms whose flows are all in conntrack: no flow passes through this process, and no failed
// connection is seen.
type Tracked struct{}

// EndFlows implements Datapath.
func (Tracked) EndFlows(context.Context, []flow.Flow) (flow.Result, error) {
	return flow.Result{}, nil
}

// Ejected implements Datapath.
func (Tracked) Ejected(context.Context) ([]Ejection, error) { return nil, nil }

// Drained is the result of Drain for mechanisms that only need a Cleanup: established connections need only conntrack
// and the NAT rules of the other mode.
func Drained(cleanup error) (done bool, err error) { return cleanup == nil, cleanup }
