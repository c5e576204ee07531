package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/fairway-net/fairway/internal/conntrack"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/reset"
	"github.com/fairway-net/fairway/internal/service"
)

// flows ends what the kernel remembers of clients whose endpoint is gone: UDP flows are
// forgotten, so that the next packet goes elsewhere, and TCP connections are reset.
type flows struct {
	log    *slog.Logger
	table  *conntrack.Table
	resets *reset.Resetter
	dp     datapath.Datapath // for the flows that it carries itself
}

// asking reports whether a namespace has a living pod with that address.
type asking func(ctx context.Context, namespace string, addr netip.Addr) (bool, error)

// newFlows returns what ends flows on this node. It does not touch the kernel.
func newFlows(log *slog.Logger, alive asking, dp datapath.Datapath, settings func() service.Settings) *flows {
	f := &flows{log: log, dp: dp}
	f.table = conntrack.New(conntrack.Config{Log: log, NodePort: func(a netip.Addr) bool { return settings().ServesNodePorts(a) }})
	f.resets = reset.New(reset.Config{Log: log, Flows: conntrack.New(conntrack.Config{Log: log}), Alive: alive})
	return f
}

func (f *flows) close() { f.table.Close() }

// Forget ends the flows that a change made wrong, and says how many. It walks the
// kernel's table once.
func (f *flows) Forget(ctx context.Context, stale []service.Flow) (int, error) {
	about := make([]conntrack.Flow, len(stale))
	asked := make(map[conntrack.Flow]service.Flow, len(stale))
	for i, s := range stale {
		about[i] = conntrack.Flow{Proto: s.Proto, Frontend: s.Frontend, Endpoint: s.Endpoint, Unserved: s.Unserved}
		asked[about[i]] = s
	}
	carried, failed := f.carried(ctx, stale)
	found, err := f.table.Find(ctx, about)
	if err != nil {
		return carried, errors.Join(failed, err)
	}
	n, err := f.end(ctx, found, func(e conntrack.Entry) service.Flow {
		s, ok := asked[conntrack.Flow{Proto: e.Proto(), Frontend: e.To(), Endpoint: e.Endpoint()}]
		if !ok {
			any := netip.IPv4Unspecified()
			if e.To().Addr().Is6() {
				any = netip.IPv6Unspecified()
			}
			s = asked[conntrack.Flow{Proto: e.Proto(), Frontend: netip.AddrPortFrom(any, e.To().Port()), Endpoint: e.Endpoint()}]
		}
		return s
	})
	return carried + n, errors.Join(failed, err)
}

// Review ends all flows that the table does not allow.
func (f *flows) Review(ctx context.Context, table *service.Table) (int, error) {
	own, err := conntrack.LocalAddrs()
	if err != nil {
		return 0, err
	}
	judge := table.Review(func(a netip.Addr) bool { return own[a] })
	verdict := func(e conntrack.Entry) (service.Flow, bool) {
		return judge.Wrong(service.Flow{Proto: e.Proto(), Frontend: e.To(), Endpoint: e.Endpoint()})
	}
	found, err := f.table.Wrong(ctx, []service.Proto{service.TCP, service.UDP}, func(e conntrack.Entry) bool {
		_, wrong := verdict(e)
		return wrong
	})
	if err != nil {
		return 0, err
	}
	return f.end(ctx, found, func(e conntrack.Entry) service.Flow {
		flow, _ := verdict(e)
		return flow
	})
}

// end forgets flows and asks for connections to be reset; why says of what kind one is.
func (f *flows) end(ctx context.Context, found []conntrack.Entry, why func(conntrack.Entry) service.Flow) (int, error) {
	var gone []conntrack.Entry
	var ends []reset.End
	for _, e := range found {
		if e.Proto() != service.TCP {
			gone = append(gone, e)
			continue
		}
		flow := why(e)
		ends = append(ends, reset.End{Entry: e, Doubt: flow.Doubt, Namespace: flow.Namespace})
	}
	f.resets.End(ends)
	n, err := f.table.Remove(ctx, gone)
	f.log.Debug("ended flows", "forgotten", n, "connections", len(ends))
	return n + len(ends), err
}

// carried ends what the datapath itself carries. It is asked first whether endpoints
// are gone that may live.
func (f *flows) carried(ctx context.Context, stale []service.Flow) (int, error) {
	if !f.dp.Info().Capabilities.CarriesFlows {
		return 0, nil
	}
	var certain []service.Flow
	for _, s := range stale {
		if !s.Doubt {
			certain = append(certain, s)
			continue
		}
		f.resets.IfGone(s.Namespace, s.Endpoint.Addr(), func() {
			if _, err := f.dp.EndFlows(ctx, []service.Flow{s}); err != nil {
				f.log.Warn("a connection to an endpoint that is gone is not ended", "flow", s, "err", err)
			}
		})
	}
	return f.dp.EndFlows(ctx, certain)
}
