package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// Limits of one Ingress; what is beyond is left out. The Gateway API has similar limits itself.
const (
	maxIngressPaths = 1000 // of paths, of rules, and of hosts in spec.tls
	maxCanaries     = 10   // of one host
)

// boundedRules returns the rules that count.
func (o *Ingress) boundedRules() []IngressRule { return o.Rules[:min(len(o.Rules), maxIngressPaths)] }

// An ingressBuild is an Ingress while it is compiled.
type ingressBuild struct {
	c       *Compiler
	o       *Ingress
	unit    *routeUnit
	options options
	byHost  map[string][]*entry
	hosts   []string                         // of byHost, in the Ingress' order
	tests   map[string]map[string]canaryPath // canaries by host and path
	rules   int
}

// problem adds a Problem to the Ingress' report.
func (b *ingressBuild) problem(reason, format string, args ...any) {
	b.unit.report.Problems = api.AddProblem(b.unit.report.Problems, reason, format, args...)
}

// classOf returns the IngressClass of an Ingress if it is ours. An Ingress without a class has the default one.
func (c *Compiler) classOf(o *Ingress) *IngressClass {
	for _, class := range list[*IngressClass](c, o.Ref(), Ref{Kind: ingressClasses}) {
		if o.Class == "" && class.Default || o.Class != "" && class.Name.Name == o.Class {
			if class.Controller == c.settings.IngressController {
				return class
			}
			return nil
		}
	}
	return nil
}

// buildIngress compiles an Ingress: each path becomes a rule.
func (c *Compiler) buildIngress(o *Ingress, unit *routeUnit) {
	if c.classOf(o) == nil {
		return
	}
	unit.ours, unit.report.Generation = true, o.Generation
	b := &ingressBuild{c: c, o: o, unit: unit, byHost: map[string][]*entry{}, tests: map[string]map[string]canaryPath{}}
	b.readOptions()
	if b.options.Canary != nil {
		b.checkCanary()
		return
	}
	if len(o.Rules) > maxIngressPaths {
		b.problem("TooManyPaths", "only the first %d rules count [split the Ingress]", maxIngressPaths)
	}
	for _, rule := range o.boundedRules() {
		host := lower(rule.Host)
		b.addHost(host)
		for _, path := range rule.Paths {
			if b.rules == maxIngressPaths {
				b.problem("TooManyPaths", "only the first %d paths count [split the Ingress]", maxIngressPaths)
				break
			}
			b.addPath(host, path)
		}
	}
	b.addDefault()
	b.addWWW()
	b.addAliases()
	for _, host := range b.hosts {
		unit.attached = append(unit.attached, attachment{hosts: []string{host}, entries: b.byHost[host]})
	}
	b.buildTLS()
}

func (b *ingressBuild) addHost(host string) {
	if _, known := b.byHost[host]; !known {
		b.hosts = append(b.hosts, host)
		b.byHost[host] = nil
	}
}

// newRule returns an empty rule of the Ingress.
func (b *ingressBuild) newRule() *Rule {
	rule := &Rule{Route: b.unit.ref, Index: b.rules}
	b.rules++
	return rule
}

// rule returns a rule with a backend and the filters of the annotations.
func (b *ingressBuild) rule(backend IngressBackend) *Rule {
	rule := b.newRule()
	b.options.apply(rule)
	rule.Backends = []Backend{b.backend(backend)}
	if b.options.Closed != "" {
		rule.refuse(b.options.Closed)
	}
	return rule
}

// backend resolves a backend of the Ingress.
func (b *ingressBuild) backend(spec IngressBackend) Backend {
	var f faults
	ref := ObjectRef{GroupKind: GroupKind{Kind: string(KindService)}, Name: spec.Service, Port: spec.Port}
	if spec.Resource != "" {
		ref.GroupKind = GroupKind{Kind: spec.Resource}
	}
	if spec.PortName != "" {
		name := api.Name{Namespace: b.o.Namespace, Name: spec.Service}
		if s, _ := b.c.read(b.unit.ref, KindService, name).(*Service); s != nil {
			i := slices.IndexFunc(s.Ports, func(p ServicePort) bool { return p.Name == spec.PortName && p.Proto == api.TCP })
			if i < 0 {
				text := f.unresolve(reasonBackendNotFound, "Service %s has no port %q", name, spec.PortName)
				b.problem(f.unresolved, "%s", text)
				return Backend{Service: api.PortName{Name: name}, Weight: 1, Refused: text}
			}
			ref.Port = s.Ports[i].Port
		}
	}
	backend := b.c.backend(b.unit.ref, ref, 1, &f)
	if f.unresolved != "" {
		b.problem(f.unresolved, "%s", f.text)
	}
	if backend.Refused == "" {
		b.options.applyBackend(&backend)
	}
	return backend
}

// addPath adds the entries of a path: its own, and those of canaries for the same host and path.
func (b *ingressBuild) addPath(host string, path IngressPath) {
	e, err := b.entry(path)
	if err != nil {
		b.problem("PathInvalid", "%v", err)
		return
	}
	rule := b.rule(path.Backend)
	b.redirectToTLS(rule, host, path.Path)
	e.of(rule, &b.o.Meta, rule.Index)
	entries := append([]*entry{e}, b.canaries(host, path, e)...)
	if root := b.options.AppRoot; root != "" && e.path.matches("/") {
		entries = append(entries, b.appRoot(root))
	}
	b.byHost[host] = append(b.byHost[host], entries...)
}

// entry compiles a path. With use-regex or rewrite-target, all paths of the Ingress are regular expressions that ignore
// case and need not match to the end, as in ingress-nginx.
func (b *ingressBuild) entry(path IngressPath) (*entry, error) {
	e := &entry{}
	text := cmp.Or(path.Path, "/")
	if text[0] != '/' {
		return nil, fmt.Errorf("path %q does not begin with /", text)
	}
	switch {
	case b.options.Regex || b.options.Filters.Rewrite != nil && b.options.Filters.Rewrite.Target != "":
		re, err := compilePattern(text, "(?i)^", "")
		if err != nil {
			return nil, err
		}
		e.path = pathMatch{kind: byPattern, value: text, regex: re}
		e.rank.length = 2 * len(text)
	case path.Type == "Exact":
		e.exact(text)
	case path.Type == "Prefix":
		e.prefix(byElements, text)
	case path.Type == "ImplementationSpecific" || path.Type == "":
		e.prefix(byText, text)
	default:
		return nil, fmt.Errorf("path type %q is not supported", path.Type)
	}
	return e, nil
}

// appRoot returns the entry that redirects the root of a host.
func (b *ingressBuild) appRoot(target string) *entry {
	rule := b.newRule()
	rule.Filters = Filters{Allow: b.options.Filters.Allow, Deny: b.options.Filters.Deny, Redirect: &Redirect{Path: &PathChange{Full: target}, Code: 302}}
	e := &entry{}
	e.exact("/")
	return e.of(rule, &b.o.Meta, rule.Index)
}

// lowest is the rank of entries that only get what no path has.
const lowest = -1

// addDefault adds the default backend: to the Ingress' own hosts, or, without any, to all hosts that no Ingress has.
func (b *ingressBuild) addDefault() {
	if b.o.Default == nil {
		return
	}
	if len(b.o.Rules) == 0 {
		b.addHost("")
	}
	for _, host := range b.hosts {
		rule := b.rule(*b.o.Default)
		b.redirectToTLS(rule, host, "/")
		b.byHost[host] = append(b.byHost[host], b.lowestEntry(rule))
	}
}

func (b *ingressBuild) lowestEntry(rule *Rule) *entry {
	e := &entry{}
	e.prefix(byElements, "/")
	e.rank.length = lowest
	return e.of(rule, &b.o.Meta, rule.Index)
}

// addWWW adds a redirect from www.HOST to HOST, or the other way round.
func (b *ingressBuild) addWWW() {
	if !b.options.FromToWWW {
		return
	}
	for _, host := range slices.Clone(b.hosts) {
		other := otherWWW(host)
		if _, own := b.byHost[other]; own || other == "" {
			continue
		}
		rule := b.newRule()
		rule.Filters.Redirect = &Redirect{Host: host, Code: 308}
		b.addHost(other)
		b.byHost[other] = append(b.byHost[other], b.lowestEntry(rule))
	}
}

// otherWWW returns the host with www. for one without, and the other way round; empty for a wildcard.
func otherWWW(host string) string {
	if bare, www := strings.CutPrefix(host, "www."); www {
		return bare
	}
	if host == "" || host[0] == '*' {
		return ""
	}
	return "www." + host
}

// addAliases gives the entries of the first host to the hosts of server-alias.
func (b *ingressBuild) addAliases() {
	for _, alias := range b.options.Aliases {
		if _, own := b.byHost[alias]; own || len(b.o.Rules) == 0 {
			continue
		}
		first := lower(b.o.Rules[0].Host)
		b.addHost(alias)
		b.byHost[alias] = b.byHost[first]
	}
}
