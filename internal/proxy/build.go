package proxy

import (
	"net/netip"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A compiler makes tables of the Source's objects. Each build compiles only the Services that changed. It needs a
// Config and an empty table; all other fields may be zero.
type compiler struct {
	cfg     *Config
	builder *service.Builder  // nil before the first build
	facts   service.Facts     // input of the latest table
	ports   service.HostPorts // input of the latest table
	table   *service.Table    // the latest table
	ejected []netip.AddrPort  // Facts.Ejected, sorted
	// triggers are the times of the changes that no successful pass has written yet.
	triggers []time.Time
}

// build makes a new table from the objects that changed since the last call, and reports their problems.
func (c *compiler) build() {
	now := c.cfg.Facts()
	now.Ejected = c.ejected
	if c.builder == nil {
		c.builder = service.NewBuilder().Limit(now.Limits)
	}
	names := c.cfg.Source.Take()
	for _, t := range c.cfg.Source.Triggers() {
		c.triggers = append(c.triggers, t)
	}
	change := now.ChangeFrom(c.facts)
	names = append(names, c.affected(change)...)
	c.facts = now
	for _, n := range names {
		c.compile(n)
	}
	names = append(names, c.buildHostPorts(change.All())...)
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

// affected returns the Services that must be compiled again because the facts changed.
func (c *compiler) affected(change service.FactsChange) (names []api.Name) {
	if !change.Any() {
		return nil
	}
	for e := range c.table.Entries() {
		if _, pod := service.HostPodOf(e.Name); !pod && change.Affects(e) {
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
	c.builder.Set(service.Compile(svc, c.cfg.Source.Slices(n), c.facts))
}
