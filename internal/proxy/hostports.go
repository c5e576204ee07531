package proxy

import (
	"slices"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// HostPorts is the source of the ports that pods of the node have on the node's own addresses.
type HostPorts interface {
	// Dirty receives when the ports changed.
	Dirty() <-chan struct{}
	Now() service.HostPorts
}

// noHostPorts is the HostPorts of a node without host ports.
type noHostPorts struct{}

func (noHostPorts) Dirty() <-chan struct{} { return nil }
func (noHostPorts) Now() service.HostPorts { return service.HostPorts{} }

// buildHostPorts compiles the pods whose host ports changed, or all pods. It returns the names of their entries.
func (c *compiler) buildHostPorts(all bool) []api.Name {
	was, now := c.ports, c.cfg.HostPorts.Now()
	c.ports = now
	before := make(map[api.Name]*service.HostPod, len(was.Pods))
	for i := range was.Pods {
		before[was.Pods[i].Name] = &was.Pods[i]
	}
	all = all || !slices.Equal(was.Addrs, now.Addrs)
	var names []api.Name
	for i := range now.Pods {
		p := &now.Pods[i]
		old := before[p.Name]
		delete(before, p.Name)
		if old == nil || all || !p.Equal(old) {
			c.builder.Set(service.CompileHostPod(p, now.Addrs, c.facts.Node))
			names = append(names, p.Entry())
		}
	}
	for _, p := range before {
		c.builder.Delete(p.Entry())
		names = append(names, p.Entry())
	}
	return names
}
