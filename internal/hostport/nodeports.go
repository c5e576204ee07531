package hostport

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// NodePorts serves NodePorts on loopback addresses, for the node's own processes, whatever the mode:
// its connections begin at the node and go to endpoints, past the datapath. Which endpoints may have
// them is what the table says for clients on the node.
type NodePorts struct {
	Log   *slog.Logger
	Addrs []netip.Addr // loopback addresses
	// Table returns what the datapath carries; nil: nothing so far. Changed receives when it has changed.
	Table   func() *service.Table
	Changed <-chan struct{}
	// HostPorts are ports of pods on these addresses, which come first. Nil: there are none.
	HostPorts func() map[service.Key]netip.AddrPort
}

// Run serves until ctx ends, and returns nil then.
func (n *NodePorts) Run(ctx context.Context) error {
	loopback := NewLoopback(n.Log, "NodePort")
	defer loopback.Close()
	again := time.NewTicker(recheck) // a port that another program had
	defer again.Stop()
	for {
		if t := n.Table(); t != nil {
			loopback.Serve(n.wanted(t))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-n.Changed:
		case <-again.C:
		}
	}
}

// wanted are the ports that have endpoints. At others nothing listens, which refuses connections as
// the datapath does.
func (n *NodePorts) wanted(t *service.Table) map[service.Key]Backends {
	var taken map[service.Key]netip.AddrPort
	if n.HostPorts != nil {
		taken = n.HostPorts()
	}
	all := map[service.Key]Backends{}
	for f := range t.Frontends() {
		if !f.NodePort() || len(f.Internal.Endpoints) == 0 {
			continue
		}
		for _, a := range n.Addrs {
			k := service.Key{Addr: netip.AddrPortFrom(a, f.Addr.Port()), Proto: f.Proto}
			if _, is := taken[k]; !is && a.Is4() == f.Addr.Addr().Is4() {
				all[k] = Backends{Endpoints: slices.Clone(f.Internal.Endpoints), Affinity: f.Affinity, Keeps: f.KeepsFlowsTo}
			}
		}
	}
	return all
}
