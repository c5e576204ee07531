package gateway

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// maxAncestors is the API's limit of the ancestors in a policy's status.
const maxAncestors = 16

// A caResult is what the references of a BackendTLSPolicy lead to.
type caResult struct {
	roots            *x509.CertPool // nil: the system's
	accepted, text   string         // the reason of Accepted false; empty: true
	unresolved, what string         // the reason of ResolvedRefs false
}

// resolveCAs reads a policy's CAs.
func (c *Compiler) resolveCAs(reader Ref, p *BackendTLSPolicy) (r caResult) {
	switch {
	case p.Hostname == "":
		r.accepted, r.text = reasonInvalid, "spec.validation.hostname is empty"
		return r
	case p.WellKnown == "System":
		return r
	case p.WellKnown != "":
		r.accepted, r.text = reasonInvalid, fmt.Sprintf("wellKnownCACertificates %q is not supported [use System]", p.WellKnown)
		return r
	}
	var pools []Object
	for _, ref := range p.CAs {
		kind, reason, err := Kind(ref.Kind), reasonInvalidKind, error(nil)
		if ref.Group != "" || kind != KindConfigMap && kind != KindSecret {
			err = fmt.Errorf("CAs of kind %s are not supported [use a ConfigMap]", ref.GroupKind)
		} else {
			reason = reasonInvalidCA
			_, err = c.authorities(reader, kind, api.Name{Namespace: p.Namespace, Name: ref.Name})
		}
		if err != nil {
			r.unresolved, r.what = cmp.Or(r.unresolved, reason), cmp.Or(r.what, err.Error())
			continue
		}
		pools = append(pools, c.objects[Ref{kind, api.Name{Namespace: p.Namespace, Name: ref.Name}}])
	}
	if r.roots = c.secrets.join(pools); r.roots == nil {
		r.accepted, r.text = reasonNoValidCA, "no CA can be read: "+cmp.Or(r.what, "none is named")
	}
	return r
}

// backendTLS returns the TLS for a Service's port that a BackendTLSPolicy asks for, or why the port must not be used.
func (c *Compiler) backendTLS(route Ref, service *Service, port *ServicePort) (*BackendTLS, string) {
	p := c.policyOf(route, service.Name, port.Name)
	if p == nil {
		return nil, ""
	}
	r := c.resolveCAs(route, p)
	if r.accepted != "" {
		return nil, fmt.Sprintf("BackendTLSPolicy %s of Service %s is not valid: %s", p.Name, service.Name, r.text)
	}
	return &BackendTLS{ServerName: p.Hostname, SANs: p.SANs, Roots: r.roots}, ""
}

// policyOf returns the policy in force for a Service's port: the oldest one that names the port, or else the oldest one for
// all ports.
func (c *Compiler) policyOf(reader Ref, service api.Name, port string) *BackendTLSPolicy {
	policies := list[*BackendTLSPolicy](c, reader, Ref{tlsPoliciesOf, service})
	for _, section := range []string{port, ""} {
		for _, p := range policies {
			if p.targets(service.Name, section) {
				return p
			}
		}
	}
	return nil
}

func (o *BackendTLSPolicy) targets(service, section string) bool {
	return slices.ContainsFunc(o.Targets, func(t ObjectRef) bool {
		return t.Group == "" && t.Kind == string(KindService) && t.Name == service && t.Section == section
	})
}

// stalePoliciesOf makes the reports of the policies that a route reads stale, because the route's Gateways are their
// ancestors.
func (c *Compiler) stalePoliciesOf(route Ref) {
	for read := range c.reads.of[route] {
		if read.Kind == tlsPoliciesOf || read.Kind == routePoliciesOf {
			for policy := range c.index.members[read] {
				c.reports.stalePolicies[policy] = struct{}{}
			}
		}
	}
}

// reportTLSPolicy publishes the status of a policy: an ancestor for each Gateway with a route to its Services.
func (c *Compiler) reportTLSPolicy(ref Ref) {
	c.reads.forget(ref)
	p, _ := c.objects[ref].(*BackendTLSPolicy)
	if p == nil {
		c.reports.drop(ref)
		return
	}
	c.reportPolicy(p, c.tlsPolicyConditions(p), c.gatewaysOf(listsOf(p)))
}

// reportPolicy publishes the status of a policy at its ancestors. A policy without an ancestor of ours has none.
func (c *Compiler) reportPolicy(o Object, cs conditions, ancestors []ObjectRef) {
	report := Report{Generation: o.meta().Generation}
	for _, a := range ancestors[:min(len(ancestors), maxAncestors)] {
		report.Parents = append(report.Parents, ParentReport{a, cs})
	}
	if len(report.Parents) == 0 {
		c.reports.drop(o.Ref())
		return
	}
	c.reports.set(o.Ref(), report)
}

func (c *Compiler) tlsPolicyConditions(p *BackendTLSPolicy) conditions {
	r := c.resolveCAs(p.Ref(), p)
	var cs conditions
	switch {
	case !c.inForce(p):
		cs.set(accepted, false, reasonConflicted, "an older BackendTLSPolicy has the same target")
	case r.accepted != "":
		cs.set(accepted, false, r.accepted, r.text)
	default:
		cs.good(accepted)
	}
	if r.unresolved != "" {
		cs.set(resolvedRefs, false, r.unresolved, r.what)
	} else {
		cs.good(resolvedRefs)
	}
	return cs
}

// inForce reports whether a policy is the oldest one for at least one of its targets.
func (c *Compiler) inForce(p *BackendTLSPolicy) bool {
	for _, t := range p.Targets {
		service := api.Name{Namespace: p.Namespace, Name: t.Name}
		for _, o := range list[*BackendTLSPolicy](c, p.Ref(), Ref{tlsPoliciesOf, service}) {
			if o == p {
				return true
			}
			if o.targets(t.Name, t.Section) {
				break
			}
		}
	}
	return len(p.Targets) == 0
}

// gatewaysOf returns the Gateways of the routes that read lists of policies, sorted.
func (c *Compiler) gatewaysOf(lists []Ref) (all []ObjectRef) {
	var names []api.Name
	for _, l := range lists {
		for route := range c.reads.readers[l] {
			unit := c.routes[route]
			if unit == nil {
				continue
			}
			for _, a := range unit.attached {
				if a.listener != nil && !slices.Contains(names, a.listener.gateway) {
					names = append(names, a.listener.gateway)
				}
			}
		}
	}
	slices.SortFunc(names, api.Name.Compare)
	for _, n := range names {
		all = append(all, ObjectRef{GroupKind: GroupKind{Group, string(KindGateway)}, Namespace: n.Namespace, Name: n.Name})
	}
	return all
}
