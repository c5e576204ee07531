package gateway

import (
	"maps"
	"reflect"
)

// reports keeps the reports of all objects of ours.
type reports struct {
	all     map[Ref]Report
	changed map[Ref]struct{}
	counts  map[Ref]struct{} // Gateways whose numbers of routes may have changed

	stalePolicies map[Ref]struct{} // policies whose ancestors may have changed
}

func newReports() reports {
	return reports{map[Ref]Report{}, map[Ref]struct{}{}, map[Ref]struct{}{}, map[Ref]struct{}{}}
}

func (r *reports) set(ref Ref, report Report) {
	if old, ok := r.all[ref]; ok && reflect.DeepEqual(old, report) {
		return
	}
	r.all[ref] = report
	r.changed[ref] = struct{}{}
}

func (r *reports) drop(ref Ref) {
	if _, ok := r.all[ref]; ok {
		delete(r.all, ref)
		r.changed[ref] = struct{}{}
	}
}

func (r *reports) recount(gateway Ref) { r.counts[gateway] = struct{}{} }

// recountOwner marks the Gateway of a listener's owner.
func (r *reports) recountOwner(owner Ref, c *Compiler) {
	switch owner.Kind {
	case KindGateway:
		r.recount(owner)
	case KindListenerSet:
		for _, l := range c.listeners[owner] {
			r.recount(Ref{KindGateway, l.gateway})
			return
		}
	}
}

// report publishes the reports that depend on the attached routes: those of Gateways, ListenerSets and policies.
func (c *Compiler) report() {
	for ref := range c.reports.counts {
		unit := c.gateways[ref]
		if unit == nil {
			continue
		}
		c.reports.set(ref, c.counted(ref, unit.report))
		for set, report := range unit.sets {
			c.reports.set(set, c.counted(set, report))
		}
	}
	clear(c.reports.counts)
	for ref := range c.reports.stalePolicies {
		switch ref.Kind {
		case KindBackendTLSPolicy:
			c.reportTLSPolicy(ref)
		case KindRoutePolicy:
			c.reportRoutePolicy(ref)
		}
	}
	clear(c.reports.stalePolicies)
}

// counted returns a report with the numbers of attached routes.
func (c *Compiler) counted(owner Ref, r Report) Report {
	listeners := make([]ListenerReport, len(r.Listeners))
	for i, l := range r.Listeners {
		l.Attached = len(c.attached.byRoute[listenerKey{owner, l.Name}])
		listeners[i] = l
	}
	r.Listeners = listeners
	return r
}

// Reports returns the status of each object that is ours, as of the last Table.
func (c *Compiler) Reports() map[Ref]Report { return maps.Clone(c.reports.all) }

// Changes returns the reports that changed since the last call. An object that has no report any more has ok false: it is
// gone, or no longer ours.
func (c *Compiler) Changes() map[Ref]*Report {
	changes := make(map[Ref]*Report, len(c.reports.changed))
	for ref := range c.reports.changed {
		if r, ok := c.reports.all[ref]; ok {
			changes[ref] = &r
		} else {
			changes[ref] = nil
		}
	}
	clear(c.reports.changed)
	return changes
}
