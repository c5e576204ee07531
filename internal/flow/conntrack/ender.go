package conntrack

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
)

// An Ender ends flows that the kernel remembers: entries of UDP are deleted, so that the
// client's next packet goes by the rules of now, as are those of TCP that no endpoint has answered,
// and TCP connections are reset. It belongs to one goroutine.
type Ender struct {
	log   *slog.Logger
	table *Table
	reset func([]Entry)
}

// NewEnder returns an Ender that works on table, which is its own. reset resets TCP
// connections; it returns at once.
func NewEnder(log *slog.Logger, table *Table, reset func([]Entry)) *Ender {
	return &Ender{log: log, table: table, reset: reset}
}

// EndFlows implements flow.Ender. It searches the table once for all flows. Call it when
// the kernel has the new rules, or a client's next packet brings the flow back.
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

// end ends what was found, but for what is unconfirmed.
func (e *Ender) end(ctx context.Context, found []Match) (result flow.Result, err error) {
	unconfirmed := map[flow.Key]bool{}
	var remove, reset []Entry
	for _, m := range found {
		switch {
		case m.Unanswered():
			remove = append(remove, m.Entry)
		case m.Flow.Unanswered: // it was answered
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
