//go:build uml

package node

import (
	"net/netip"
	"testing"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/ipvs"
)

func byIPVS(t testing.TB) datapath.Datapath { return made(ipvs.New(ipvs.Config{}))(t) }

// TestEgressByIPVS is TestEgressWhateverMarks in mode ipvs. The pod also reaches a pod of another node by a Service, which sees the
// pod's own address.
func TestEgressByIPVS(t *testing.T) {
	c := newCluster(t, 3, dual)
	c.outside.serve()
	c.sync()
	for _, m := range c.machines {
		m.carry(byIPVS(t), m.peer.PodCIDRs, []netip.Addr{outside4, outside6}, nil)
	}
	c.wantEgressByServices()

	p, server := c.machines[0].newPod(), c.machines[1].newPod()
	d := byIPVS(t)
	c.machines[0].carry(d, c.machines[0].peer.PodCIDRs, server.addrs, nil)
	for _, r := range reachabilities {
		c.setEgress(r, p)
		for i, addr := range p.addrs {
			p.wantSource(r.name+", ClusterIP", webService().ClusterIPs[i], addr)
			p.wantAnswer(r.name+", NodePort", netip.AddrPortFrom(c.machines[0].peer.Addrs[i], nodePort))
		}
	}
}
