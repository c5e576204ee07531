package proxy

import (
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A compiler makes tables of the Source's objects. Each build compiles only the Services that changed. It needs a
// Config and an empty table; all other fields may be zero.
type compiler struct {
	cfg     *Config
	builder *service.Builder  // nil before the first build
	node    service.Node      // input of the latest table
	ports   service.HostPorts // input of the latest table
	table   *service.Table    // the latest table
	// triggers are the times of the changes that no successful pass has written yet.
	triggers []time.Time
}

// build makes a new table from the objects that changed since the last call, and reports their problems.
func (c *compiler) build() {
	now := c.cfg.View()
	if c.builder == nil {
		c.builder = service.NewBuilder().Limit(now.Limits)
	}
	names := c.cfg.Source.Take()
	for _, t := range c.cfg.Source.Triggers() {
		c.triggers = append(c.triggers, t)
	}
	all := !now.CompilesLike(c.node)
	names = append(names, c.affected(now, all)...)
	c.node = now
	for _, n := range names {
		c.compile(n)
	}
	names = append(names, c.buildHostPorts(all)...)
	c.table = c.builder.Table(now.Settings)
	for _, n := range names {
		e := c.table.Entry(n)
		c.cfg.Metrics.compiled(n, e)
		if e != nil {
			c.cfg.Report(n, e.Problems)
		} else {
			c.cfg.Report(n, nil)
		}
	}
}

// affected returns the Services that must be compiled again because the node changed: all Services, or the Services
// that depend on the change.
func (c *compiler) affected(now service.Node, all bool) (names []api.Name) {
	refuses, dead := !now.RefusesLike(c.node), now.DeadUnlike(c.node)
	if !all && !refuses && len(dead) == 0 {
		return nil
	}
	for e := range c.table.Entries() {
		if _, pod := service.HostPodOf(e.Name); !pod && (all || refuses && e.DependsOnAddresses() || len(dead) > 0 && e.HasEndpointsOn(dead)) {
			names = append(names, e.Name)
		}
	}
	return names
}

// compile gives the current Service of that name to the builder.
func (c *compiler) compile(n api.Name) {
	svc, ok := c.cfg.Source.Service(n)
	if !ok {
		c.builder.Delete(n)
		return
	}
	c.builder.Set(service.Compile(svc, c.cfg.Source.Slices(n), c.node))
}
