package gateway

import (
	"cmp"
	"reflect"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// The process's ports for Ingresses.
const (
	IngressHTTP  = 8080
	IngressHTTPS = 8443
)

// Settings are what an administrator chooses. The zero value has the defaults.
type Settings struct {
	Controller        string // of GatewayClasses; empty: fairway.net/gateway
	IngressController string // of IngressClasses; empty: fairway.net/ingress
	// The process's ports for Ingresses; 0: the constants of these names.
	IngressHTTP, IngressHTTPS uint16
	// DefaultCertificate is a Secret for hosts of Ingresses that have none. The zero value: such handshakes fail.
	DefaultCertificate api.Name
}

func (s Settings) withDefaults() Settings {
	s.Controller = cmp.Or(s.Controller, "fairway.net/gateway")
	s.IngressController = cmp.Or(s.IngressController, "fairway.net/ingress")
	s.IngressHTTP, s.IngressHTTPS = cmp.Or(s.IngressHTTP, IngressHTTP), cmp.Or(s.IngressHTTPS, IngressHTTPS)
	return s
}

// A Compiler keeps the objects and the Table that follows from them. It belongs to one goroutine; its Tables belong to
// everybody.
//
//	Set, Delete ─→ stale objects ─→ Table: compile what is stale ─→ stale hosts ─→ rebuild these
//
// A compiled object records what it read, so a change of a Secret or a ReferenceGrant makes exactly its readers stale.
type Compiler struct {
	settings Settings
	objects  map[Ref]Object
	index    index
	reads    reads
	secrets  secretCache

	stale     map[Ref]struct{}     // Gateways, routes, Ingresses and policies to compile
	listeners map[Ref][]*listener  // by Gateway or ListenerSet
	gateways  map[Ref]*gatewayUnit // by Gateway
	routes    map[Ref]*routeUnit   // by route or Ingress
	attached  attachments
	reports   reports
	table     *Table
}

// NewCompiler returns a Compiler without objects.
func NewCompiler(s Settings) *Compiler {
	c := &Compiler{
		settings:  s.withDefaults(),
		objects:   map[Ref]Object{},
		index:     newIndex(),
		reads:     newReads(),
		secrets:   newSecretCache(),
		stale:     map[Ref]struct{}{},
		listeners: map[Ref][]*listener{},
		gateways:  map[Ref]*gatewayUnit{},
		routes:    map[Ref]*routeUnit{},
		attached:  newAttachments(),
		reports:   newReports(),
	}
	c.table = c.firstTable()
	return c
}

// Set adds an object or replaces it. The Compiler keeps the object, so the caller must not change it any more.
func (c *Compiler) Set(o Object) {
	ref := o.Ref()
	old := c.objects[ref]
	if old != nil && reflect.DeepEqual(old, o) {
		return
	}
	c.objects[ref] = o
	c.change(ref, old, o)
}

// Delete removes an object. An unknown Ref is no error.
func (c *Compiler) Delete(ref Ref) {
	old := c.objects[ref]
	if old == nil {
		return
	}
	delete(c.objects, ref)
	c.change(ref, old, nil)
}

// change makes the readers of an object stale. old or o may be nil.
func (c *Compiler) change(ref Ref, old, o Object) {
	c.secrets.forget(ref)
	switch ref.Kind {
	case KindGatewayClass, KindGateway, KindHTTPRoute, KindGRPCRoute, KindTLSRoute, KindTCPRoute, KindUDPRoute, KindIngress,
		KindBackendTLSPolicy, KindRoutePolicy:
		c.stale[ref] = struct{}{}
	}
	for _, version := range []Object{old, o} {
		if version == nil {
			continue
		}
		for _, list := range listsOf(version) {
			c.markReaders(list)
		}
	}
	c.index.replace(ref, old, o)
	c.markReaders(ref)
}

func (c *Compiler) markReaders(ref Ref) {
	for reader := range c.reads.readers[ref] {
		c.stale[reader] = struct{}{}
	}
}

// read returns an object, and records that the reader depends on it. It returns nil if there is none.
func (c *Compiler) read(reader Ref, kind Kind, name api.Name) Object {
	ref := Ref{kind, name}
	c.reads.add(reader, ref)
	return c.objects[ref]
}

// compileOrder has the kinds in the order in which they are compiled: a kind reads only results of kinds before it.
var compileOrder = [][]Kind{
	{ingressPortsKind},
	{KindGatewayClass},
	{KindGateway},
	{KindHTTPRoute, KindGRPCRoute, KindTLSRoute, KindTCPRoute, KindUDPRoute, KindIngress},
	{KindBackendTLSPolicy, KindRoutePolicy},
}

// Table compiles what is stale and returns the result. It returns the same pointer if nothing changed.
func (c *Compiler) Table() *Table {
	for _, kinds := range compileOrder {
		for _, kind := range kinds {
			for ref := range c.stale {
				if ref.Kind == kind {
					c.compile(ref)
				}
			}
		}
	}
	clear(c.stale)
	c.rebuild()
	c.report()
	return c.table
}

func (c *Compiler) compile(ref Ref) {
	if ref.Kind == KindBackendTLSPolicy || ref.Kind == KindRoutePolicy {
		c.reports.stalePolicies[ref] = struct{}{} // its routes are stale, too, because they read it
		return
	}
	c.stalePoliciesOf(ref)
	c.reads.forget(ref)
	switch ref.Kind {
	case ingressPortsKind:
		c.attached.ports[portKey{c.settings.IngressHTTPS, api.TCP}] = struct{}{}
	case KindGatewayClass:
		c.compileClass(ref)
	case KindGateway:
		c.compileGateway(ref)
	default:
		c.compileRoute(ref)
	}
	c.stalePoliciesOf(ref)
}

// Needs returns the objects that the others name. They are read from the records of the compiled objects, so a reference
// that a ReferenceGrant would have to allow is not in the list without it.
func (c *Compiler) Needs() Needs {
	return Needs{
		Secrets:    c.reads.names(KindSecret),
		ConfigMaps: c.reads.names(KindConfigMap),
		Services:   c.reads.names(KindService),
	}
}

// older reports whether a comes before b where the API prefers the older object.
func older(a, b *Meta) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), a.Compare(b.Name))
}

// lower returns a host name in the form in which hosts are compared: lower case, without a final dot.
func lower(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }
