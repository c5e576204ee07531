// Package datapath is the contract between the policy and a mechanism of the kernel.
//
//	*service.Table ── Sync ──→ ┌───────────┐
//	                           │  kernel   │ ←── packets
//	*service.Table ←─ Adopt ── └───────────┘
//
// A mechanism (nftables, iptables, ipvs, userspace) is a package beside this one. It hides
// how a Table becomes kernel objects. The suite in conformance/ holds every mechanism to
// the contract, with real packets. What a mechanism can do is data (Info), and every method
// is required: no caller asserts a second interface.
package datapath

import (
	"context"
	"fmt"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
)

// A Datapath makes one kernel mechanism behave like a Table. It belongs to one goroutine,
// but for Info. That goroutine stays in one network namespace, the one that
// the datapath works on. Every method that asks the kernel ends when its context does.
type Datapath interface {
	// Info returns the mechanism's name and what it can do. It is constant and does not
	// ask the kernel.
	Info() Info
	// Probe returns what keeps the mechanism from working here: no rights, a kernel
	// without it, a program that is not installed. It changes nothing.
	Probe(ctx context.Context) error
	// Adopt reads what the kernel does now and changes nothing. If the datapath has not
	// synced yet, its first Sync starts from what Adopt read, without reading it again.
	Adopt(ctx context.Context) (Adopted, error)
	// Sync makes the kernel do what want says. It is atomic for each frontend,
	// idempotent, and safe to repeat after any error: it then starts from what the
	// kernel really holds. The first Sync of a process takes over what an earlier one
	// left and writes only what differs. Stats count what was done also with an error.
	Sync(ctx context.Context, want *service.Table) (Stats, error)
	// Check reports whether the kernel still holds what the last Sync left, as far as
	// can be found out cheaply: it is called every few seconds. After a Drift the next
	// Sync repairs what another program changed.
	Check(ctx context.Context) (Drift, error)
	// Explain returns the kernel objects that make the frontend with that key work, as the
	// kernel holds them now; none if there is no such frontend. It changes nothing.
	Explain(ctx context.Context, k service.Key) ([]Object, error)
	// Counts returns what was carried since the rules were loaded, for each Service port.
	// Which fields are filled in, Capabilities.Counts says.
	Counts(ctx context.Context) (map[api.PortName]Count, error)
	// EndFlows ends the flows of those described that the datapath carries in this process,
	// as flow.Ender has it. Conntrack cannot end those. Where Capabilities.CarriesFlows is
	// false there are none.
	EndFlows(ctx context.Context, flows []flow.Flow) (flow.Result, error)
	// Drain gives the node to another datapath, which is in place: from now on this one
	// takes no new connection. It keeps what established connections need, and removes
	// what none needs any more each time it is called. After done nothing of it is left.
	Drain(ctx context.Context) (done bool, err error)
	// Cleanup removes everything of this datapath from the kernel, also what established
	// connections need. It is not an error if there is nothing.
	Cleanup(ctx context.Context) error
	// Close frees what the datapath holds in this process: sockets, goroutines, memory.
	// The rules in the kernel stay. A closed datapath is not used again.
	Close()
}

// Info says what a datapath is. It is constant.
type Info struct {
	Name         string // the mode's name as in --proxy-mode: "nftables"
	Capabilities Capabilities
	// Program is the constant ruleset as nft text; empty if the mechanism has none.
	Program string
}

// Capabilities say what a mechanism can do.
type Capabilities struct {
	// Algorithms are those that it balances by; Random is always one of them.
	Algorithms service.Algorithms
	// Protocols are those that it forwards. Ports of others are rejected.
	Protocols []api.Proto
	// Counts are the fields of Count that it fills in.
	Counts Counted
	// Affinity says which of a Service port's frontends share what they remember of a client.
	Affinity AffinityScope
	// CarriesFlows says that connections pass through this process, which EndFlows can end.
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

// AffinityScope says for which frontends a client's affinity holds.
type AffinityScope uint8

// The scopes. kube-proxy's is AffinityPerPort.
const (
	// AffinityPerPort: a client gets the same endpoint at every address of a Service port.
	AffinityPerPort AffinityScope = iota
	// AffinityPerFrontend: each address remembers clients by itself.
	AffinityPerFrontend
)

// Adopted is what Adopt found in the kernel.
type Adopted struct {
	// Table is what the kernel does, in the words of the policy. It is never nil.
	Table *service.Table
	// Found says that this datapath, in this process or an earlier one, has been at work
	// on the node. Rules that only look like ours, such as kube-proxy's, do not count.
	Found bool
}

// Stats says what a Sync did.
type Stats struct {
	Frontends int  // frontends that changed
	Added     int  // kernel elements added
	Deleted   int  // kernel elements deleted
	Full      bool // everything was compared with the kernel, not with the last table
	// Differs is what the kernel holds otherwise than it was written, repeatedly; empty: nothing.
	// Only a Full one finds out.
	Differs string
}

// Drift says what another program changed. The zero value is no drift.
type Drift struct {
	// Rules says that rules or chains differ, Elements that data does: elements of sets and
	// maps, virtual servers.
	Rules, Elements bool
	// Retry says that no program changed anything, and that it is time to write again what the last Sync
	// found to differ (Stats.Differs).
	Retry bool
}

// Any reports whether anything differs.
func (d Drift) Any() bool { return d.Rules || d.Elements || d.Retry }

// An Object is a kernel object behind a frontend.
type Object struct {
	Kind string `json:"kind"` // "map element", "set element", "chain", "rule", "virtual server", "listener"
	Name string `json:"name"` // where it is found: "inet fairway frontends4"
	Text string `json:"text"` // what it says, as the mechanism's own tool prints it
}

// A Count is what one Service port carried.
type Count struct{ Connections, Packets, Bytes, Rejects, Drops uint64 }

// FrontKey returns a frontend's key as nft prints it as a key of our maps:
// "10.96.0.10 . udp . 53", or "tcp . 30080" for a NodePort.
func FrontKey(k service.Key) string {
	text := fmt.Sprintf("%s . %d", strings.ToLower(k.Proto.String()), k.Addr.Port())
	if k.Addr.Addr().IsUnspecified() {
		return text
	}
	return k.Addr.Addr().String() + " . " + text
}

// Tracked is embedded by mechanisms that carry no flows in this process: conntrack has them all.
type Tracked struct{}

// EndFlows implements Datapath.
func (Tracked) EndFlows(context.Context, []flow.Flow) (flow.Result, error) {
	return flow.Result{}, nil
}

// Drained is the result of Drain where a Cleanup is enough: established connections need only
// conntrack and the NAT rules of the other mode.
func Drained(cleanup error) (done bool, err error) { return cleanup == nil, cleanup }
