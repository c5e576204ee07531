package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// tryScheduler finds out whether the kernel has the schedulers of a table. It tries each scheduler once, on a temporary
// virtual server that no packet reaches. Services with a missing scheduler are served round robin.
func (d *Datapath) tryScheduler(ctx context.Context, changes []service.Change) error {
	for _, c := range changes {
		f := c.New
		if f == nil {
			continue
		}
		for _, r := range [...]*service.Route{f.Internal, f.External} {
			_, weighted := realsOf(r.Endpoints)
			name := scheduler(f.Balance, weighted)
			if _, known := d.schedulers[name]; known {
				continue
			}
			if err := d.probeScheduler(ctx, name); err != nil {
				return err
			}
			if !d.schedulers[name] {
				d.cfg.Log.Warn("the kernel lacks an IPVS scheduler: its Services are served round robin [modprobe ip_vs_"+name+"]",
					"scheduler", name, "service", f.Service.String())
			}
		}
		if _, known := d.schedulers[overflowSchedulers[0]]; f.Affinity > 0 && !known {
			if err := d.tryOverflow(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// probeScheduler records whether the kernel has a scheduler.
func (d *Datapath) probeScheduler(ctx context.Context, name string) error {
	probe := serverID{netip.AddrPortFrom(serverRange4.Addr(), serverPortNumber), api.TCP}
	err := d.genl.do(ctx, []serverOp{{cmd: cmdNewServer, server: probe, definition: &virtualServer{sched: name}}})
	switch {
	case err == nil:
		err = d.genl.do(ctx, []serverOp{{cmd: cmdDelServer, server: probe}})
	case errors.Is(err, unix.ENOENT):
		d.schedulers[name] = false
		return nil
	case errors.Is(err, unix.EEXIST): // a process that died left the server: Sync removes it
		err = nil
	}
	if err != nil {
		return fmt.Errorf("try scheduler %s: %w", name, err)
	}
	d.schedulers[name] = true
	return nil
}

// scheduler returns the scheduler for an algorithm, or round robin if the kernel lacks it.
func (s *state) scheduler(a service.Algorithm, weighted bool) string {
	name := scheduler(a, weighted)
	if has, tried := s.schedulers[name]; tried && !has {
		return scheduler(service.RoundRobin, weighted)
	}
	return name
}
