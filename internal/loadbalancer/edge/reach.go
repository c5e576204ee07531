package edge

import (
	"context"
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/service"
)

// Nodes is the level-triggered source of the cluster's nodes.
type Nodes interface {
	announce.Feed
	Instances() []service.Instance // sorted by name
}

// AskNodes lets a Prober ask all nodes whether their proxy works, until ctx ends. It is for connections to pods, where no
// other part asks nodes.
func AskNodes(ctx context.Context, nodes Nodes, p *Prober, c Checks) error {
	for next := nodes.Synced(); ; next = nodes.Dirty() {
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
		if ctx.Err() != nil { // both cases were ready
			return nil
		}
		start, want := time.Now(), map[Target]string{}
		for _, n := range nodes.Instances() {
			for _, is4 := range []bool{true, false} {
				if a := n.Addr(is4); a.IsValid() {
					want[Target{netip.AddrPortFrom(a, c.ProxyPort), "/healthz"}] = ""
				}
			}
		}
		p.Set(want)
		fair.Rest(ctx, time.Since(start), nil)
	}
}

// CutOff returns a reason if no node answers at all; empty if one does, or if the first answers are missing.
func (p *Prober) CutOff() string {
	states := p.States()
	if states[service.Silent] == 0 || states[service.Passing]+states[service.Failing]+states[service.Unprobed] > 0 {
		return ""
	}
	return "no node of the cluster answers health checks"
}
