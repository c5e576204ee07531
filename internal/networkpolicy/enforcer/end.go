package enforcer

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// EndAll returns a Config.End for what this process carries, and for what the kernel remembers:
// TCP connections are reset, so that both ends know, and the other entries deleted, so that the
// next packet is judged.
func EndAll(gate *flow.Gate, table *conntrack.Table, reset func([]conntrack.Entry)) func(context.Context, func(networkpolicy.Packet) bool) (int, error) {
	return func(ctx context.Context, denied func(networkpolicy.Packet) bool) (int, error) {
		local, err := conntrack.LocalAddrs()
		if err != nil {
			return 0, fmt.Errorf("read the node's addresses: %w", err)
		}
		carried := gate.EndRefused()
		found, err := table.Audit(ctx, []api.Proto{api.TCP, api.UDP, api.SCTP}, func(e conntrack.Entry) bool {
			// What a client has with our own proxy is between the client and the endpoint.
			p := packet(e)
			p.ToNode = local[p.Dst]
			return !e.MarkedForReset() && !local[p.Src] &&
				denied(p) && !gate.Carries(e.Proto(), e.Client(), e.Frontend())
		})
		if err != nil {
			return carried, fmt.Errorf("read conntrack's table: %w", err)
		}
		var open, others []conntrack.Entry
		for _, e := range found {
			if e.Proto() == api.TCP && e.Open() {
				open = append(open, e)
			} else {
				others = append(others, e)
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
func packet(e conntrack.Entry) networkpolicy.Packet {
	to := e.Endpoint()
	return networkpolicy.Packet{Src: e.Client().Addr(), Dst: to.Addr(), Proto: e.Proto(), Port: to.Port()}
}
