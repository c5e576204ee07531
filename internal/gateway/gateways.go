package gateway

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// maxListeners is the number of listeners of a Gateway with its ListenerSets. Further ones are refused with
// TooManyListeners.
const maxListeners = 2048

// A gatewayUnit is a compiled Gateway with its ListenerSets. Its reports lack the numbers of attached routes.
type gatewayUnit struct {
	report  Report
	sets    map[Ref]Report
	owners  []Ref // of its listeners: itself and its ListenerSets
	drafts  []*draft
	ports   []Port
	accepts bool
}

// gatewayClass returns a Gateway's class if it is ours.
func (c *Compiler) gatewayClass(g *Gateway) *Class {
	class, _ := c.read(g.Ref(), KindGatewayClass, api.Name{Name: g.Class}).(*Class)
	if class == nil || class.Controller != c.settings.Controller {
		return nil
	}
	return class
}

func (c *Compiler) compileGateway(ref Ref) {
	old := c.gateways[ref]
	unit := &gatewayUnit{sets: map[Ref]Report{}}
	g, _ := c.objects[ref].(*Gateway)
	if g != nil && c.gatewayClass(g) == nil {
		g = nil
	}
	if g != nil {
		c.buildGateway(g, unit)
		c.gateways[ref] = unit
	} else {
		delete(c.gateways, ref)
		c.reports.drop(ref)
	}
	if old == nil {
		old = &gatewayUnit{}
	}
	for set := range old.sets {
		if _, stays := unit.sets[set]; !stays {
			c.reports.drop(set)
		}
	}
	c.replaceListeners(old, unit)
	c.reports.recount(ref)
	c.attached.stalePorts(old.ports, unit.ports)
}

// replaceListeners publishes the new listeners. A listener whose meaning stays keeps its pointer. The routes of an owner
// whose listeners changed become stale.
func (c *Compiler) replaceListeners(old, unit *gatewayUnit) {
	fresh := map[Ref][]*listener{}
	for _, d := range unit.drafts {
		fresh[d.Owner] = append(fresh[d.Owner], c.keep(d))
	}
	for _, owner := range append(slices.Clone(old.owners), unit.owners...) {
		before, had := c.listeners[owner]
		after, has := fresh[owner], slices.Contains(unit.owners, owner)
		if had == has && slices.Equal(before, after) {
			continue
		}
		if has {
			c.listeners[owner] = after
		} else {
			delete(c.listeners, owner)
		}
		c.attached.replaceListeners(before, after)
		c.markReaders(Ref{listenersOf + owner.Kind, owner.Name})
	}
}

// keep returns the listener of a draft: the one that is published already if nothing differs.
func (c *Compiler) keep(d *draft) *listener {
	l := d.listener
	l.accepted = d.conflict == "" && d.refusal == ""
	if !d.served() {
		l.bind = 0
	}
	for _, before := range c.listeners[d.Owner] {
		if before.Name == l.Name && reflect.DeepEqual(*before, l) {
			return before
		}
	}
	return &l
}

// buildGateway fills a unit from a Gateway.
func (c *Compiler) buildGateway(g *Gateway, unit *gatewayUnit) {
	ref := g.Ref()
	var cs conditions
	cert := c.backendCertificate(g, &cs)
	refusal, text := c.gatewayRefusal(g)
	unit.accepts = refusal == ""
	unit.owners = append(unit.owners, ref)
	for i := range g.Listeners {
		unit.drafts = append(unit.drafts, c.draftListener(g, ref, &g.Listeners[i]))
	}
	own := len(unit.drafts)
	sets := list[*ListenerSet](c, ref, Ref{listenerSetsOf, g.Name})
	for _, set := range sets {
		c.addSet(g, set, unit)
	}
	for _, d := range unit.drafts {
		d.backendCert = cert
		if !unit.accepts {
			d.bind = 0
		}
	}
	for i, d := range unit.drafts {
		if i >= maxListeners {
			d.refuse(reasonTooManyListeners, "a Gateway has at most %d listeners", maxListeners)
		}
	}
	findConflicts(unit.drafts[:min(len(unit.drafts), maxListeners)], own)
	unit.report = gatewayReport(g, unit.drafts[:own], cs, refusal, text)
	for _, set := range sets {
		if _, refused := unit.sets[set.Ref()]; !refused {
			unit.sets[set.Ref()] = setReport(set, unit)
			if acceptedReport(unit.sets[set.Ref()]) {
				unit.report.Sets++
			}
		}
	}
	unit.ports = portsOf(ref, unit.drafts)
}

// backendCertificate resolves the Gateway's own certificate for backends.
func (c *Compiler) backendCertificate(g *Gateway, cs *conditions) *tls.Certificate {
	if g.BackendCertificate.Kind == "" {
		return nil
	}
	cert, reason, err := c.certificateFor(g, g.Ref(), g.BackendCertificate)
	if err != nil {
		if reason == reasonInvalidCertificate {
			reason = reasonInvalidClientCert
		}
		cs.set(resolvedRefs, false, reason, err.Error())
		return nil
	}
	return cert
}

// gatewayRefusal returns the reason why a whole Gateway is refused; empty: it is not.
func (c *Compiler) gatewayRefusal(g *Gateway) (reason, text string) {
	switch {
	case g.InfrastructureParameters:
		return reasonInvalidParameters, "spec.infrastructure.parametersRef is not supported [remove it]"
	case len(g.OtherAddresses) > 0:
		return reasonUnsupportedAddress, fmt.Sprintf("address %q is not supported [use type IPAddress]", g.OtherAddresses[0])
	}
	return "", ""
}

// addSet adds the listeners of a ListenerSet, or refuses the set.
func (c *Compiler) addSet(g *Gateway, set *ListenerSet, unit *gatewayUnit) {
	ref := set.Ref()
	reason, text := "", ""
	if set.Parent.Kind != string(KindGateway) || set.Parent.Group != Group {
		return
	}
	unit.owners = append(unit.owners, ref)
	switch {
	case !c.admits(g.Ref(), g.AllowedListeners, g.Namespace, set.Namespace):
		reason, text = reasonNotAllowed, "spec.allowedListeners of the Gateway does not include this namespace"
	case !unit.accepts:
		reason, text = reasonParentNotAccepted, "the Gateway is not accepted"
	}
	if reason != "" {
		var cs conditions
		cs.set(accepted, false, reason, text)
		cs.set(programmed, false, reason, text)
		unit.sets[ref] = Report{Generation: set.Generation, Conditions: cs}
		return
	}
	for i := range set.Listeners {
		unit.drafts = append(unit.drafts, c.draftListener(g, ref, &set.Listeners[i]))
	}
}

// admits reports whether a choice of namespaces includes one. From empty means None for ListenerSets; routesAllowed has
// filled in Same for routes.
func (c *Compiler) admits(reader Ref, n Namespaces, own, namespace string) bool {
	switch n.From {
	case "All":
		return true
	case "Same":
		return own == namespace
	case "Selector":
		ns, _ := c.read(reader, KindNamespace, api.Name{Name: namespace}).(*Namespace)
		return ns != nil && n.Selector.Matches(ns.Labels)
	}
	return false
}

// findConflicts marks the listeners that cannot have their port. Among the Gateway's own listeners, the first own ones of
// the list, all in a conflict lose. A listener of a ListenerSet loses against all before it.
func findConflicts(drafts []*draft, own int) {
	ports := map[BindKey][]*draft{}
	for i, d := range drafts {
		if d.refusal == reasonUnsupportedProtocol {
			continue
		}
		key := BindKey{d.proto, d.Port}
		for _, before := range ports[key] {
			conflict := conflictOf(before, d)
			switch {
			case conflict == "" && d.spec.Protocol == protoHTTPS && before.spec.Protocol == protoHTTPS && intersects(before.Hostname, d.Hostname):
				before.overlap, d.overlap = cmp.Or(before.overlap, d.Name), cmp.Or(d.overlap, before.Name)
			case conflict == "" || before.conflict != "" && i >= own:
			case i < own:
				before.conflict, d.conflict = conflict, conflict
			default:
				d.conflict = conflict
			}
		}
		ports[key] = append(ports[key], d)
	}
}

func conflictOf(a, b *draft) string {
	switch {
	case family(a.spec.Protocol) != family(b.spec.Protocol):
		return reasonProtocolConflict
	case a.Hostname == b.Hostname:
		return reasonHostnameConflict
	}
	return ""
}

// gatewayReport returns the status of a Gateway.
func gatewayReport(g *Gateway, drafts []*draft, cs conditions, refusal, text string) Report {
	r := Report{Generation: g.Generation}
	good, serving, unresolved, insecure := 0, 0, 0, false
	for _, d := range drafts {
		r.Listeners = append(r.Listeners, d.report())
		if d.conflict == "" && d.refusal == "" {
			good++
		}
		if d.served() {
			serving++
		}
		if d.unresolved != "" {
			unresolved++
		}
		insecure = insecure || d.clientAny
	}
	var all conditions
	switch {
	case refusal != "":
		all.set(accepted, false, refusal, text)
	case good == 0:
		all.set(accepted, false, reasonListenersNotValid, "no listener is accepted")
	case good < len(drafts):
		all.set(accepted, true, reasonListenersNotValid, fmt.Sprintf("%d of %d listeners are not accepted", len(drafts)-good, len(drafts)))
	default:
		all.good(accepted)
	}
	switch {
	case refusal != "" || good == 0:
		all.set(programmed, false, reasonInvalid, "the Gateway is not accepted")
	case serving == 0 && pending(drafts):
		all.set(programmed, false, reasonPending, "the gateway has no port for the listeners yet")
	case serving == 0:
		all.set(programmed, false, reasonInvalid, "no listener can serve")
	default:
		all.good(programmed)
	}
	all = append(all, cs...)
	if len(cs) == 0 && unresolved > 0 {
		all.set(resolvedRefs, false, reasonListenersNotResolved, "listeners with references that cannot be resolved: "+strconv.Itoa(unresolved))
	} else if len(cs) == 0 {
		all.good(resolvedRefs)
	}
	if insecure {
		all.set(insecureFrontend, true, reasonConfigurationChanged, "clients without a valid certificate are let in (AllowInsecureFallback)")
	}
	r.Conditions = all
	return r
}

// pending reports whether a listener waits for nothing but a port.
func pending(drafts []*draft) bool {
	return slices.ContainsFunc(drafts, func(d *draft) bool {
		return d.bind == 0 && d.conflict == "" && d.refusal == "" && !d.unusable
	})
}

// setReport returns the status of a ListenerSet whose listeners are among the drafts.
func setReport(set *ListenerSet, unit *gatewayUnit) Report {
	r := Report{Generation: set.Generation}
	good, drafts := 0, 0
	for _, d := range unit.drafts {
		if d.Owner != set.Ref() {
			continue
		}
		drafts++
		r.Listeners = append(r.Listeners, d.report())
		if d.conflict == "" && d.refusal == "" && !d.unusable {
			good++
		}
	}
	var cs conditions
	switch {
	case good == 0:
		cs.set(accepted, false, reasonListenersNotValid, "no listener is valid")
		cs.set(programmed, false, reasonListenersNotValid, "no listener is valid")
	case good < drafts:
		cs.set(accepted, true, reasonListenersNotValid, fmt.Sprintf("%d of %d listeners are not valid", drafts-good, drafts))
		cs.good(programmed)
	default:
		cs.good(accepted)
		cs.good(programmed)
	}
	r.Conditions = cs
	return r
}

func acceptedReport(r Report) bool {
	return slices.ContainsFunc(r.Conditions, func(c Condition) bool { return c.Type == accepted && c.Status })
}

// portsOf returns the process's ports of a Gateway.
func portsOf(gateway Ref, drafts []*draft) (ports []Port) {
	for _, d := range drafts {
		if !d.served() {
			continue
		}
		p := Port{
			Number: d.bind, Proto: d.proto, Owner: gateway, External: d.Port,
			TLS: family(d.protocol) == protoTLS, HTTP: strings.HasPrefix(d.protocol, protoHTTP),
		}
		if i := slices.IndexFunc(ports, func(o Port) bool { return o.Number == p.Number && o.Proto == p.Proto }); i >= 0 {
			ports[i].HTTP = ports[i].HTTP || p.HTTP
			continue
		}
		ports = append(ports, p)
	}
	return ports
}

// Wanted returns the ports of each Gateway's accepted listeners, with those of its ListenerSets. The edge allocates the
// process's ports from it, and sets the Gateways again with Bind.
func (c *Compiler) Wanted() map[Ref][]BindKey {
	wanted := make(map[Ref][]BindKey, len(c.gateways))
	for ref, unit := range c.gateways {
		var keys []BindKey
		for _, d := range unit.drafts {
			key := BindKey{d.proto, d.Port}
			if unit.accepts && d.conflict == "" && d.refusal == "" && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		wanted[ref] = keys
	}
	return wanted
}

// compileClass reports on a GatewayClass.
func (c *Compiler) compileClass(ref Ref) {
	class, _ := c.objects[ref].(*Class)
	if class == nil || class.Controller != c.settings.Controller {
		c.reports.drop(ref)
		return
	}
	var cs conditions
	if class.Parameters {
		cs.set(accepted, false, reasonInvalidParameters, "spec.parametersRef is not supported [remove it]")
	} else {
		cs.good(accepted)
	}
	c.reports.set(ref, Report{Generation: class.Generation, Conditions: cs, Features: Features()})
}
