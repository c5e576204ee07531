package config

import (
	"net/netip"
	"net/url"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// Connection returns how to reach the API server, where userAgent names this program.
func (c *Config) Connection(userAgent string) kube.Connection {
	return kube.Connection{
		Kubeconfig: c.Kubeconfig, Master: c.Master, QPS: c.QPS, Burst: c.Burst,
		ContentType: c.ContentType, UserAgent: userAgent, AllowHTTP: c.AllowHTTP, Person: c.Person,
	}
}

// View returns what tables are compiled for: this node as the API server has it at the
// time of a call. A node that the API server has never had has no zone and no addresses. A datapath
// that carries Services can do all algorithms but the unsupported ones.
func (c *Config) View(store *kube.Store, unsupported service.Algorithms) func() service.Node {
	return func() service.Node {
		known, _ := store.Node()
		n := c.Node(known.Zone, known.Addrs, known.PodCIDRs)
		n.Settings.ServiceCIDRs = store.ServiceCIDRs()
		n.NodeAddrs = service.NewAddrSet(append(store.NodeAddrs(), n.NodeAddrs...)...)
		n.APIServers = service.NewAddrSet(append(store.APIServers(), c.masterAddr())...)
		n.Unsupported = unsupported
		return n
	}
}

// masterAddr is the address in Master; invalid if there is none.
func (c *Config) masterAddr() netip.Addr {
	u, err := url.Parse(c.Master)
	if err != nil {
		return netip.Addr{} // kube.Connect names the mistake
	}
	a, _ := netip.ParseAddr(u.Hostname())
	return a
}
