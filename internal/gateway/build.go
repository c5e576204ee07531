package gateway

import (
	"maps"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// A Table says what a gateway does at each of its ports. It is immutable, and the next Table shares all hosts with it that
// did not change.
type Table struct {
	ports map[portKey]*portTable
	list  []Port
}

type portKey struct {
	number uint16
	proto  api.Proto
}

// A portTable has the listeners of one port of the process.
type portTable struct {
	Port
	listeners hosts[*listenerTable]
}

// A listenerTable is a listener with the hosts of its routes.
type listenerTable struct {
	*listener
	hosts *hosts[*host]
}

// listenerKey identifies a listener. The zero value stands for the Ingresses.
type listenerKey struct {
	owner Ref
	name  string
}

type hostKey struct {
	listener listenerKey
	host     string
}

func (l *listener) key() listenerKey {
	if l == nil {
		return listenerKey{}
	}
	return listenerKey{l.Owner, l.Name}
}

// attachments are the routes by listener and host, and what has to be built again.
type attachments struct {
	byHost  map[hostKey]map[Ref]attachment
	byRoute map[listenerKey]map[Ref]struct{}
	hosts   map[listenerKey]*hosts[*host] // as they are in the Table
	stale   map[listenerKey]map[string]struct{}
	ports   map[portKey]struct{}    // stale ports
	over    map[hostKey]map[Ref]int // matches that exceed a limit

	tls        map[string]map[Ref]*hostTLS // by host of Ingresses
	staleTLS   map[string]struct{}
	ingressTLS ingressTLS // as it is in the Table
}

func newAttachments() attachments {
	return attachments{
		byHost: map[hostKey]map[Ref]attachment{}, byRoute: map[listenerKey]map[Ref]struct{}{},
		hosts: map[listenerKey]*hosts[*host]{}, stale: map[listenerKey]map[string]struct{}{}, ports: map[portKey]struct{}{},
		over: map[hostKey]map[Ref]int{},
		tls:  map[string]map[Ref]*hostTLS{}, staleTLS: map[string]struct{}{}, ingressTLS: ingressTLS{hosts: hosts[*hostTLS]{oneLabel: true}},
	}
}

// replace records that a route is attached as unit says, and no longer as old says.
func (x *attachments) replace(old, unit *routeUnit) {
	for _, a := range old.attached {
		key := a.listener.key()
		for _, host := range a.hosts {
			k := hostKey{key, host}
			delete(x.byHost[k], old.ref)
			if len(x.byHost[k]) == 0 {
				delete(x.byHost, k)
			}
			insert(x.stale, key, host)
		}
		remove(x.byRoute, key, old.ref)
	}
	for _, a := range unit.attached {
		key := a.listener.key()
		for _, host := range a.hosts {
			k := hostKey{key, host}
			if x.byHost[k] == nil {
				x.byHost[k] = map[Ref]attachment{}
			}
			x.byHost[k][unit.ref] = a
			insert(x.stale, key, host)
		}
		insert(x.byRoute, key, unit.ref)
	}
}

// replaceListeners makes the ports of changed listeners stale.
func (x *attachments) replaceListeners(before, after []*listener) {
	for _, l := range append(slices.Clone(before), after...) {
		if l.bind != 0 {
			x.ports[portKey{l.bind, l.proto}] = struct{}{}
		}
	}
}

func (x *attachments) stalePorts(before, after []Port) {
	if slices.Equal(before, after) {
		return
	}
	for _, p := range append(slices.Clone(before), after...) {
		x.ports[portKey{p.Number, p.Proto}] = struct{}{}
	}
}

// rebuild builds the stale hosts, the ports that have them, and a new Table if there are any.
func (c *Compiler) rebuild() {
	x := &c.attached
	for key, names := range x.stale {
		var limits []Ref
		x.hosts[key], limits = x.rebuildHosts(key, names)
		for _, ref := range limits {
			if unit := c.routes[ref]; unit != nil {
				c.reportRoute(unit)
			}
		}
		c.reports.recountOwner(key.owner, c)
		for _, p := range c.portsOfListener(key) {
			x.ports[p] = struct{}{}
		}
	}
	clear(x.stale)
	if len(x.staleTLS) > 0 {
		x.rebuildTLS()
		x.ports[portKey{c.settings.IngressHTTPS, api.TCP}] = struct{}{}
	}
	if len(x.ports) == 0 {
		return
	}
	next := &Table{ports: maps.Clone(c.table.ports)}
	fresh := c.freshPorts()
	for key := range x.ports {
		if p := fresh[key]; p != nil {
			next.ports[key] = p
		} else {
			delete(next.ports, key)
		}
	}
	clear(x.ports)
	for _, p := range next.ports {
		next.list = append(next.list, p.Port)
	}
	slices.SortFunc(next.list, func(a, b Port) int { return int(a.Number)<<8 + int(a.Proto) - int(b.Number)<<8 - int(b.Proto) })
	c.table = next
}

// rebuildHosts returns a listener's hosts and builds the named ones again. limits are routes that now exceed a limit of
// matches, or exceed it no longer. Their reports change.
func (x *attachments) rebuildHosts(key listenerKey, names map[string]struct{}) (fresh *hosts[*host], limits []Ref) {
	next := &hosts[*host]{oneLabel: key == listenerKey{}}
	if before := x.hosts[key]; before != nil {
		*next = *before
		next.exact, next.wildcard = maps.Clone(before.exact), maps.Clone(before.wildcard)
	}
	for name := range names {
		routes := x.byHost[hostKey{key, name}]
		if len(routes) == 0 {
			next.unset(name)
			limits = append(limits, x.setOver(hostKey{key, name}, nil)...)
			continue
		}
		var entries []*entry
		var best *stream
		for _, a := range routes {
			entries = append(entries, a.entries...)
			if s := a.stream; s != nil && (best == nil || s.before(best)) {
				best = s
			}
		}
		h, over := newHost(entries)
		h.stream = best
		limits = append(limits, x.setOver(hostKey{key, name}, over)...)
		next.set(name, h)
	}
	if len(next.exact) == 0 && len(next.wildcard) == 0 && !next.hasAll {
		return nil, limits
	}
	return next, limits
}

func (s *stream) before(o *stream) bool {
	return older(&Meta{Name: s.Route.Name, Created: s.created}, &Meta{Name: o.Route.Name, Created: o.created}) < 0
}

// portsOfListener returns the ports of the process at which a listener is served.
func (c *Compiler) portsOfListener(key listenerKey) []portKey {
	if key == (listenerKey{}) {
		return []portKey{{c.settings.IngressHTTP, api.TCP}, {c.settings.IngressHTTPS, api.TCP}}
	}
	for _, l := range c.listeners[key.owner] {
		if l.Name == key.name && l.bind != 0 {
			return []portKey{{l.bind, l.proto}}
		}
	}
	return nil
}

// freshPorts builds the stale ports.
func (c *Compiler) freshPorts() map[portKey]*portTable {
	fresh := map[portKey]*portTable{}
	stale := c.attached.ports
	for _, unit := range c.gateways {
		for _, p := range unit.ports {
			key := portKey{p.Number, p.Proto}
			if _, ok := stale[key]; !ok {
				continue
			}
			table := &portTable{Port: p}
			for _, owner := range unit.owners {
				for _, l := range c.listeners[owner] {
					if l.bind == p.Number && l.proto == p.Proto {
						table.listeners.set(l.Hostname, &listenerTable{l, c.attached.hosts[l.key()]})
					}
				}
			}
			fresh[key] = table
		}
	}
	for _, p := range c.ingressPorts() {
		if _, ok := stale[portKey{p.Number, p.Proto}]; ok {
			fresh[portKey{p.Number, p.Proto}] = c.ingressPort(p)
		}
	}
	return fresh
}

// firstTable returns the Table without objects.
func (c *Compiler) firstTable() *Table {
	t := &Table{ports: map[portKey]*portTable{}}
	for _, p := range c.ingressPorts() {
		t.ports[portKey{p.Number, p.Proto}] = c.ingressPort(p)
		t.list = append(t.list, p)
	}
	return t
}

// Ports returns the ports at which the process listens, sorted. The caller must not change the slice.
func (t *Table) Ports() []Port { return t.list }

// Lookup returns the fate of a request that arrived at a TCP port of the process.
func (t *Table) Lookup(port uint16, r Request) Decision {
	p := t.ports[portKey{port, api.TCP}]
	if p == nil {
		return Decision{Outcome: NoListener}
	}
	name := r.Host()
	l, _, _, ok := p.listeners.next(name, -1)
	if !ok {
		return Decision{Outcome: NoListener}
	}
	d := Decision{Listener: &l.Listener}
	if p.TLS && !p.sameListener(l, name, r.ServerName()) {
		d.Outcome = Misdirected
		return d
	}
	path := r.Path()
	for at := -1; l.hosts != nil; {
		h, pattern, next, ok := l.hosts.next(name, at)
		if !ok {
			break
		}
		if e := h.find(r, path); e != nil {
			return d.serve(e, path)
		}
		if at = next; l.hosts.oneLabel && pattern != "" {
			break // an Ingress' host is complete, as in nginx
		}
	}
	d.Outcome = NoRoute
	return d
}

// serve completes a Decision for the winning entry.
func (d Decision) serve(e *entry, path string) Decision {
	d.Rule, d.Prefix = e.rule, e.path.prefixLength()
	if e.path.kind == byPattern && e.rule.Filters.needsCaptures() {
		d.Captures = e.path.regex.FindStringSubmatch(path)
	}
	return d
}

// needsCaptures reports whether a filter uses groups of the path's regular expression.
func (f *Filters) needsCaptures() bool {
	return f.Rewrite != nil && strings.Contains(f.Rewrite.Target, "$") || f.Redirect != nil && strings.Contains(f.Redirect.URL, "$")
}

// sameListener reports whether the name of the TLS handshake leads to the listener of the request's host. If it does not,
// the client has reused a connection that another listener had accepted, perhaps with other rules for clients.
func (p *portTable) sameListener(l *listenerTable, host, serverName string) bool {
	if host == serverName {
		return true
	}
	other, _, _, ok := p.listeners.next(serverName, -1)
	return ok && other == l && l.sameClients(host, serverName)
}

// Handshake returns how a TLS connection begins. ok is false if no listener has the name.
func (t *Table) Handshake(port uint16, serverName string) (h Handshake, ok bool) {
	p := t.ports[portKey{port, api.TCP}]
	if p == nil || !p.TLS {
		return Handshake{}, false
	}
	l, _, _, ok := p.listeners.next(serverName, -1)
	if !ok {
		return Handshake{}, false
	}
	h = Handshake{Listener: &l.Listener, Certificates: l.certificates, ClientCAs: l.clientCAs, ClientAny: l.clientAny}
	if l.ingress != nil {
		return l.ingress.handshake(h, serverName)
	}
	if l.protocol != protoTLS {
		return h, true
	}
	if l.hosts == nil {
		return Handshake{}, false
	}
	found, _, _, ok := l.hosts.next(serverName, -1)
	if !ok || found.stream == nil {
		return Handshake{}, false
	}
	if l.passthrough {
		h.Passthrough = found.stream.Backends
	} else {
		h.Forward = found.stream.Backends
	}
	return h, true
}

// Stream returns where connections or flows of a port go that is neither TLS nor HTTP.
func (t *Table) Stream(port uint16, proto api.Proto) (Stream, bool) {
	p := t.ports[portKey{port, proto}]
	if p == nil || p.TLS || p.HTTP {
		return Stream{}, false
	}
	l, _, _, ok := p.listeners.next("", -1)
	if !ok || l.hosts == nil || l.hosts.all == nil || l.hosts.all.stream == nil {
		return Stream{}, false
	}
	return l.hosts.all.stream.Stream, true
}
