package enforcer

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/flow/conntrack"
	"github.com/fairway-net/fairway/internal/networkpolicy"
)

// EndAll returns a Config.End. It ends the connections of this process, resets the kernel's TCP connections so that
// both ends notice, and deletes other conntrack entries so that policies see the next packet.
func EndAll(gate *flow.Gate, table *conntrack.Table, reset func([]conntrack.Entry)) func(context.Context, func(networkpolicy.Packet) bool) (int, error) {
	return func(ctx context.Context, denied func(networkpolicy.Packet) bool) (int, error) {
		local, err := conntrack.LocalAddrs()
		if err != nil {
			return 0, fmt.Errorf("read the node's addresses: %w", err)
		}
		carried := gate.EndRefused()
		found, err := table.Audit(ctx, nil, func(e conntrack.Entry) bool {
			// A client's connection to our own proxy does not count: the connection that matters is between client and
			// endpoint.
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

// packet returns the first packet of an entry, as policies saw it.
func packet(e conntrack.Entry) networkpolicy.Packet {
	to := e.Endpoint()
	return networkpolicy.Packet{Src: e.Client().Addr(), Dst: to.Addr(), Proto: e.Proto(), Port: to.Port()}
}
