package hostport

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// NodePorts serves NodePorts on loopback addresses for the node's own processes, in every mode. Its connections begin
// at the node and go to endpoints, past the datapath. It uses the table's endpoints for clients on the node.
type NodePorts struct {
	Log   *slog.Logger
	Addrs []netip.Addr // loopback addresses
	// Table returns the datapath's table; nil: there is none yet. Changed receives when the table has changed.
	Table   func() *service.Table
	Changed <-chan struct{}
	// HostPorts returns the pods' ports on these addresses, which win over NodePorts. Nil: there are none.
	HostPorts func() map[service.Key]netip.AddrPort

	seen  *service.Table                    // the last table
	ports map[service.Key]*service.Frontend // the NodePorts of seen with endpoints
}

// Run serves until ctx ends, and returns nil.
func (n *NodePorts) Run(ctx context.Context) error {
	loopback := NewLoopback(n.Log, "NodePort")
	defer loopback.Close()
	again := time.NewTicker(recheck) // to try ports again that another program held
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

// wanted returns the ports with endpoints. On other ports nothing listens, so connections are refused, as in the
// datapath.
func (n *NodePorts) wanted(t *service.Table) map[service.Key]Backends {
	var taken map[service.Key]netip.AddrPort
	if n.HostPorts != nil {
		taken = n.HostPorts()
	}
	n.follow(t)
	all := map[service.Key]Backends{}
	for _, f := range n.ports {
		for _, a := range n.Addrs {
			k := service.Key{Addr: netip.AddrPortFrom(a, f.Addr.Port()), Proto: f.Proto}
			if _, is := taken[k]; !is && a.Is4() == f.Addr.Addr().Is4() {
				all[k] = Backends{Endpoints: slices.Clone(f.Internal.Endpoints), Affinity: f.Affinity, Keeps: f.KeepsFlowsTo}
			}
		}
	}
	return all
}

// follow updates ports to a table, at the cost of the changes in it. A change of retained flows counts too.
func (n *NodePorts) follow(t *service.Table) {
	if n.seen == nil {
		n.seen, n.ports = &service.Table{}, map[service.Key]*service.Frontend{}
	}
	for c := range service.Touched(n.seen, t) {
		if f := c.New; f != nil && f.NodePort() && len(f.Internal.Endpoints) > 0 {
			n.ports[c.Key()] = f
		} else {
			delete(n.ports, c.Key())
		}
	}
	n.seen = t
}
