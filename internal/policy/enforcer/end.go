package enforcer

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/conntrack"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/policy"
	"github.com/fairway-net/fairway/internal/service"
)

// EndAll returns a Config.End for what this process carries, and for what the kernel remembers:
// TCP connections are reset, so that both ends know, and the other entries deleted, so that the
// next packet is judged.
func EndAll(gate *datapath.Gate, table *conntrack.Table, reset func([]conntrack.Entry)) func(context.Context, func(policy.Packet) bool) (int, error) {
	return func(ctx context.Context, denied func(policy.Packet) bool) (int, error) {
		local, err := conntrack.LocalAddrs()
		if err != nil {
			return 0, fmt.Errorf("read the node's addresses: %w", err)
		}
		carried := gate.EndRefused()
		found, err := table.Audit(ctx, []service.Proto{service.TCP, service.UDP, service.SCTP}, func(e conntrack.Entry) (flow.Flow, bool) {
			// What a client has with our own proxy is between the client and the endpoint.
			p := packet(e)
			p.ToNode = local[p.Dst]
			return flow.Flow{}, !e.MarkedForReset() && !local[p.Src] &&
				denied(p) && !gate.Carries(e.Proto(), e.Client(), e.Frontend())
		})
		if err != nil {
			return carried, fmt.Errorf("read conntrack's table: %w", err)
		}
		var open, others []conntrack.Entry
		for _, m := range found {
			if m.Proto() == service.TCP && m.Open() {
				open = append(open, m.Entry)
			} else {
				others = append(others, m.Entry)
			}
		}
		if len(open) > 0 {
			reset(open)
		}
		removed, err := table.Remove(ctx, others)
		return carried + len(open) + removed, err
	}
}

// packet is the first one of an entry, as policies saw it.
func packet(e conntrack.Entry) policy.Packet {
	to := e.Endpoint()
	return policy.Packet{Src: e.Client().Addr(), Dst: to.Addr(), Proto: e.Proto(), Port: to.Port()}
}
