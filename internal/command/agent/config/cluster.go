package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// Connection returns the way to the API server. userAgent names this program in requests.
func (c *Config) Connection(userAgent string) kube.Connection {
	return kube.Connection{
		Kubeconfig: c.Kubeconfig, Master: c.Master, QPS: c.QPS, Burst: c.Burst,
		ContentType: c.ContentType, UserAgent: userAgent, AllowHTTP: c.AllowHTTP, Person: c.Person,
	}
}

// View returns a function that returns the node's current facts from the API server. A node that the API server does
// not know has no zone and no addresses. The datapath cannot do the unsupported algorithms.
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

// masterAddr returns the IP address in Master, or the zero Addr.
func (c *Config) masterAddr() netip.Addr {
	u, err := url.Parse(c.Master)
	if err != nil {
		return netip.Addr{} // kube.Connect reports the error
	}
	a, _ := netip.ParseAddr(u.Hostname())
	return a
}

// placeholder is the top-level domain of the address in deploy/agent/config.yaml. It never resolves (RFC 6761).
const placeholder = ".invalid"

// master refuses the placeholder address of deploy/. Otherwise the agent would wait for it for ever.
func (r *resolver) master(c *Config) error {
	if r.own.settingsDir != "" && c.Master == "" && c.Kubeconfig == "" && os.Getenv("KUBERNETES_SERVICE_HOST") != "" && !c.Cleanup {
		// The pod's variables lead to a Service, which works only when the agent has written it.
		return errors.New("FAIRWAY_API_SERVER is not set [set it in the ConfigMap fairway-agent to server: of /etc/kubernetes/kubelet.conf; docs/settings.md says more]")
	}
	u, err := url.Parse(c.Master)
	if err != nil || !strings.HasSuffix(u.Hostname(), placeholder) || c.Cleanup {
		return nil // kube.Connect refuses an invalid URL
	}
	return fmt.Errorf("FAIRWAY_API_SERVER is not set: --master is still %s [set it in the ConfigMap fairway-agent (deploy/agent/config.yaml) to server: of /etc/kubernetes/kubelet.conf; deploy/README.md says more]", c.Master)
}
