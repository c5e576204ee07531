package conntrack

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
)

// An Ender ends flows of the kernel. It deletes entries of UDP, and entries of TCP in state SYN_SENT: the client's next
// packet takes the way of the new rules. It has all other TCP connections reset. An Ender belongs to one goroutine.
type Ender struct {
	log   *slog.Logger
	table *Table
	reset func([]Entry)
}

// NewEnder returns an Ender that owns table. reset resets TCP connections, and must return at once.
func NewEnder(log *slog.Logger, table *Table, reset func([]Entry)) *Ender {
	return &Ender{log: log, table: table, reset: reset}
}

// EndFlows implements flow.Ender. It searches the table once for all flows. Call it after the kernel has the new rules:
// before that, the client's next packet would create the flow again.
func (e *Ender) EndFlows(ctx context.Context, flows []flow.Flow) (flow.Result, error) {
	found, err := e.table.Find(ctx, flows)
	if err != nil {
		return flow.Result{}, err
	}
	return e.end(ctx, found)
}

// AuditFlows implements flow.Ender. It reads the whole table.
func (e *Ender) AuditFlows(ctx context.Context, c *flow.Checker) (flow.Result, error) {
	addrs, err := LocalAddrs()
	if err != nil {
		return flow.Result{}, err
	}
	local := func(a netip.Addr) bool { return addrs[a] }
	check := func(one Entry) (flow.Flow, bool) {
		return c.Check(flow.Flow{Proto: one.Proto(), Frontend: one.Frontend(), Endpoint: one.Endpoint()}, local)
	}
	entries, err := e.table.Audit(ctx, []api.Proto{api.TCP, api.UDP}, func(one Entry) bool {
		_, wrong := check(one)
		return wrong
	})
	if err != nil {
		return flow.Result{}, err
	}
	var found []Match
	for _, one := range entries {
		wrong, _ := check(one)
		found = append(found, Match{one, wrong})
	}
	return e.end(ctx, found)
}

// end ends the flows that were found, except unconfirmed ones.
func (e *Ender) end(ctx context.Context, found []Match) (result flow.Result, err error) {
	unconfirmed := map[flow.Key]bool{}
	var remove, reset []Entry
	for _, m := range found {
		switch {
		case m.Unanswered():
			remove = append(remove, m.Entry)
		case m.Flow.OnlyUnanswered: // the endpoint has answered
		case m.Flow.Unconfirmed:
			if k := m.Flow.Key(); !unconfirmed[k] {
				unconfirmed[k] = true
				result.Unconfirmed = append(result.Unconfirmed, m.Flow)
			}
		case m.Proto() != api.TCP:
			remove = append(remove, m.Entry)
		case !m.MarkedForReset():
			reset = append(reset, m.Entry)
		}
	}
	if len(reset) > 0 {
		e.reset(reset)
	}
	removed, err := e.table.Remove(ctx, remove)
	result.Ended = removed + len(reset)
	e.log.Debug("ended flows", "removed", removed, "connectionsToReset", len(reset), "unconfirmed", len(result.Unconfirmed))
	return result, err
}
