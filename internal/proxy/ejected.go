package proxy

import (
	"context"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/datapath"
)

// readEjected asks the datapath which endpoints fail connections, and reports whether the answer has changed. The next
// build leaves these endpoints out.
func (l *Loop) readEjected(ctx context.Context) (changed bool) {
	all, err := l.cfg.Datapath.Ejected(ctx)
	if err != nil {
		l.cfg.Log.Debug("cannot read the ejected endpoints", "err", err)
		return false
	}
	is, logged := make([]netip.AddrPort, len(all)), 0
	for i, e := range all {
		is[i] = e.Endpoint
		if !slices.Contains(l.ejected, e.Endpoint) {
			l.cfg.Metrics.ejections.Inc()
			if logged++; logged <= maxLogged {
				l.logEjection(e)
			}
		}
	}
	l.cfg.Metrics.ejected.Set(float64(len(is)))
	if slices.Equal(l.ejected, is) {
		return false
	}
	l.ejected = is
	return true
}

func (l *Loop) logEjection(e datapath.Ejection) {
	l.cfg.Log.Warn("an endpoint fails connections, and gets no new ones for a while [see its pod's log; fairway.net/ejection: \"off\" on the Service turns this off]",
		"endpoint", e.Endpoint, "services", l.servicesOf(e.Endpoint), "reason", e.Reason, "until", e.Until, "inARow", e.InARow)
}

// maxNamed is the largest number of Services in a line of the log, and maxLogged that of lines for one answer.
const (
	maxNamed  = 3
	maxLogged = 10
)

// servicesOf returns some of the Services with an endpoint.
func (l *Loop) servicesOf(a netip.AddrPort) (names []string) {
	for f := range l.table.Frontends() {
		if name := f.Service.Name.String(); f.RoutesTo(a) && len(names) < maxNamed && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
