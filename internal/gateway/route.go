package gateway

import (
	"crypto/tls"
	"fmt"
	"reflect"
	"slices"
)

// A routeUnit is a compiled route or Ingress.
type routeUnit struct {
	ref      Ref
	ours     bool // it is reported also if it has no parent: an Ingress of our class
	attached []attachment
	tls      []*hostTLS // of an Ingress
	report   Report
}

// An attachment is a route's part of one listener.
type attachment struct {
	listener *listener // nil: the Ingresses' ports
	hosts    []string  // empty text: all hosts
	entries  []*entry  // the same slice for all listeners with the same client certificate
	stream   *stream   // of TLSRoute, TCPRoute, UDPRoute
}

// A stream is what a TLSRoute, TCPRoute or UDPRoute does at one listener.
type stream struct {
	Stream
	created int64
}

// faults collects what is wrong with a route.
type faults struct {
	unresolved, text string // for ResolvedRefs; the first one
	invalid          []string
	incompatible     string
}

func (f *faults) unresolve(reason, format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	if f.unresolved == "" {
		f.unresolved, f.text = reason, text
	}
	return text
}

func (f *faults) invalidate(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	f.invalid = append(f.invalid, text)
	return text
}

// compileRoute compiles a route or an Ingress.
func (c *Compiler) compileRoute(ref Ref) {
	old := c.routes[ref]
	if old == nil {
		old = &routeUnit{ref: ref}
	}
	unit := &routeUnit{ref: ref}
	switch o := c.objects[ref].(type) {
	case nil:
		delete(c.routes, ref)
	case *HTTPRoute:
		c.buildHTTP(o, unit)
	case *GRPCRoute:
		c.buildGRPC(o, unit)
	case *L4Route:
		c.buildL4(o, unit)
	case *Ingress:
		c.buildIngress(o, unit)
	}
	keepRules(old, unit)
	if c.objects[ref] != nil {
		c.routes[ref] = unit
	}
	c.attached.replace(old, unit)
	c.attached.replaceTLS(old, unit)
	c.reportRoute(unit)
}

// reportRoute publishes a route's report. A route without a parent of ours has none.
func (c *Compiler) reportRoute(unit *routeUnit) {
	if len(unit.report.Parents) == 0 && !unit.ours {
		c.reports.drop(unit.ref)
		return
	}
	c.reports.set(unit.ref, c.limited(unit))
}

// keepRules replaces rules that mean the same as before by the former pointers, so an engine keeps their state.
func keepRules(old, unit *routeUnit) {
	former := map[int][]*Rule{}
	for _, a := range old.attached {
		for _, e := range a.entries {
			if rules := former[e.rule.Index]; !slices.Contains(rules, e.rule) {
				former[e.rule.Index] = append(rules, e.rule)
			}
		}
	}
	if len(former) == 0 {
		return
	}
	kept := map[*Rule]*Rule{}
	for _, a := range unit.attached {
		for _, e := range a.entries {
			rule, seen := kept[e.rule]
			if !seen {
				rule = e.rule
				for _, f := range former[rule.Index] {
					if reflect.DeepEqual(f, rule) {
						rule = f
					}
				}
				kept[e.rule] = rule
			}
			e.rule = rule
		}
	}
}

// attach finds the listeners of a route and reports on each parent. compiled returns the entries for listeners with a
// certificate for backends; it is called once for each certificate.
func (c *Compiler) attach(unit *routeUnit, o *RouteCommon, f *faults, compiled func(*tls.Certificate) []*entry) {
	cache := map[*tls.Certificate][]*entry{}
	unit.report.Generation = o.Generation
	seen := map[*listener]bool{}
	for _, parent := range o.Parents {
		owner, ours := c.parentOf(unit.ref, parent)
		if !ours {
			continue
		}
		found, reason, text := c.listenersFor(unit.ref, o, owner, parent)
		for _, a := range found {
			if seen[a.listener] {
				continue
			}
			seen[a.listener] = true
			cert := a.listener.backendCert
			if _, done := cache[cert]; !done && compiled != nil {
				cache[cert] = compiled(cert)
			}
			a.entries = cache[cert]
			unit.attached = append(unit.attached, a)
		}
		unit.report.Parents = append(unit.report.Parents, ParentReport{parent, f.conditions(reason, text)})
	}
}

// conditions returns a route's conditions at a parent. reason is why the parent refuses it; empty: it does not.
func (f *faults) conditions(reason, text string) []Condition {
	var cs conditions
	switch {
	case reason != "":
		cs.set(accepted, false, reason, text)
	case f.incompatible != "":
		cs.set(accepted, false, reasonIncompatibleFilters, f.incompatible)
	default:
		cs.good(accepted)
	}
	if f.unresolved != "" {
		cs.set(resolvedRefs, false, f.unresolved, f.text)
	} else {
		cs.good(resolvedRefs)
	}
	if len(f.invalid) > 0 {
		cs.set(partiallyInvalid, true, reasonUnsupportedValue, "requests for this rule get 500: "+f.invalid[0])
	}
	return cs
}

// parentOf returns the Gateway or ListenerSet that a route names, if it is ours. The route becomes stale when the
// listeners of the parent change.
func (c *Compiler) parentOf(route Ref, parent ObjectRef) (owner Ref, ours bool) {
	kind := Kind(parent.Kind)
	if parent.Group != Group || kind != KindGateway && kind != KindListenerSet {
		return Ref{}, false
	}
	owner = Ref{kind, parent.in(route.Namespace)}
	c.reads.add(route, Ref{listenersOf + owner.Kind, owner.Name})
	_, ours = c.listeners[owner]
	return owner, ours
}

// listenersFor returns the listeners of a parent to which a route attaches, or why there are none.
func (c *Compiler) listenersFor(route Ref, o *RouteCommon, owner Ref, parent ObjectRef) (found []attachment, reason, text string) {
	named, allowed := 0, 0
	for _, l := range c.listeners[owner] {
		if parent.Section != "" && l.Name != parent.Section || parent.Port != 0 && l.Port != parent.Port {
			continue
		}
		named++
		if !l.accepted || !slices.Contains(l.kinds, GroupKind{Group, string(route.Kind)}) ||
			!c.admits(route, l.namespaces, owner.Namespace, route.Namespace) {
			continue
		}
		allowed++
		if hosts := l.hostsOf(o.Hostnames); len(hosts) > 0 {
			found = append(found, attachment{listener: l, hosts: hosts})
		}
	}
	switch {
	case named == 0:
		return nil, reasonNoMatchingParent, "the parent has no listener with this name and port"
	case allowed == 0:
		return nil, reasonNotAllowedByListener, fmt.Sprintf("no listener allows routes of kind %s from namespace %s [see spec.listeners[].allowedRoutes]", route.Kind, route.Namespace)
	case len(found) == 0:
		return nil, reasonNoMatchingHostname, "no listener has a host name in common with the route"
	}
	return found, "", ""
}

// hostsOf returns the hosts that a listener has in common with a route. A listener of TCP or UDP has one host for all.
func (l *listener) hostsOf(hostnames []string) (hosts []string) {
	if len(hostnames) == 0 || l.protocol == protoTCP || l.protocol == protoUDP {
		return []string{l.Hostname}
	}
	for _, name := range hostnames {
		if host, ok := intersect(l.Hostname, lower(name)); ok && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}
