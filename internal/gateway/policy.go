package gateway

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A RoutePolicy gives routes of its namespace what the Gateway API lacks. It is attached by targetRef (GEP-713): to a
// route, or to the rule of a route that Section names. The oldest policy of a target counts.
type RoutePolicy struct {
	Meta
	Targets     []ObjectRef
	Allow, Deny []string // clients, as prefixes
	RateLimit   *RateLimitSpec
	BasicAuth   *BasicAuthSpec
	ForwardAuth *ForwardAuth
	MaxBody     *int64 // bytes; 0: no bound
	AccessLog   *bool
	Session     *Session
	HashBy      string
	Retry       *Retry

	ConnectTimeout, ReadTimeout, SendTimeout time.Duration
	// Invalid says what the edge could not read; empty: nothing. The rules of such a policy get 500.
	Invalid string
}

// A RateLimitSpec limits the requests of a client.
type RateLimitSpec struct {
	RequestsPerSecond  string // a decimal
	Burst, Connections int
	Exempt             []string
	Code               int
}

// A BasicAuthSpec names a Secret with htpasswd lines in its key auth.
type BasicAuthSpec struct{ Secret, Realm string }

// applyPolicies gives the rules of a route what its policies say.
func (c *Compiler) applyPolicies(unit *routeUnit, all []*entry, f *faults) {
	policies := list[*RoutePolicy](c, unit.ref, policyList(string(unit.ref.Kind), unit.ref.Name))
	if len(policies) == 0 {
		return
	}
	done := map[*Rule]bool{}
	for _, e := range all {
		if done[e.rule] {
			continue
		}
		done[e.rule] = true
		if p := policyFor(policies, unit.ref, e.rule.Name); p != nil {
			if err := c.apply(p, e.rule); err != nil {
				e.rule.refuse(f.invalidate("RoutePolicy %s: %v", p.Name.Name, err))
			}
		}
	}
}

// policyFor returns the policy in force for a rule: the oldest one that names the rule, or else the oldest one for all rules.
func policyFor(policies []*RoutePolicy, route Ref, rule string) *RoutePolicy {
	for _, section := range []string{rule, ""} {
		for _, p := range policies {
			if p.targets(route, section) {
				return p
			}
		}
	}
	return nil
}

func (o *RoutePolicy) targets(route Ref, section string) bool {
	return slices.ContainsFunc(o.Targets, func(t ObjectRef) bool {
		return t.Group == Group && t.Kind == string(route.Kind) && t.Name == route.Name.Name && t.Section == section
	})
}

// extension applies a RoutePolicy that a filter of type ExtensionRef names. text says why it cannot be; empty: it can.
func (c *Compiler) extension(rule *Rule, ref ObjectRef, f *faults) string {
	if ref.Group != PolicyGroup || ref.Kind != string(KindRoutePolicy) {
		return f.unresolve(reasonInvalidKind, "a filter of kind %s is not supported [use a RoutePolicy]", ref.GroupKind)
	}
	name := api.Name{Namespace: rule.Route.Namespace, Name: ref.Name}
	p, _ := c.read(rule.Route, KindRoutePolicy, name).(*RoutePolicy)
	if p == nil {
		return f.unresolve(reasonBackendNotFound, "RoutePolicy %s does not exist", name)
	}
	if err := c.apply(p, rule); err != nil {
		return f.invalidate("RoutePolicy %s: %v", p.Name.Name, err)
	}
	return ""
}

// apply writes a policy into a rule.
func (c *Compiler) apply(p *RoutePolicy, rule *Rule) (err error) {
	if p.Invalid != "" {
		return fmt.Errorf("%s", p.Invalid)
	}
	f := &rule.Filters
	if f.Allow, err = prefixes(p.Allow); err != nil {
		return err
	}
	if f.Deny, err = prefixes(p.Deny); err != nil {
		return err
	}
	if f.Limits, err = p.RateLimit.limits(); err != nil {
		return err
	}
	if b := p.BasicAuth; b != nil {
		secret := api.Name{Namespace: p.Namespace, Name: b.Secret}
		if f.BasicAuth, err = c.basicAuth(rule.Route, p.Ref(), secret, "auth-file", b.Realm); err != nil {
			return err
		}
	}
	if p.ForwardAuth != nil {
		if err := c.checkAuthURL(rule.Route, p.Ref(), p.ForwardAuth.URL); err != nil {
			return err
		}
		f.ForwardAuth = p.ForwardAuth
	}
	if p.MaxBody != nil {
		f.MaxBody = *p.MaxBody
	}
	f.AccessLog = p.AccessLog
	rule.HashBy = p.HashBy
	rule.Session, rule.Retry = cmp.Or(p.Session, rule.Session), cmp.Or(p.Retry, rule.Retry)
	rule.ConnectTimeout, rule.ReadTimeout, rule.SendTimeout = p.ConnectTimeout, p.ReadTimeout, p.SendTimeout
	return nil
}

// maxPrefixes is the number of prefixes in a list. A request walks the list.
const maxPrefixes = 1000

// prefixes reads a list of clients: prefixes, or single addresses.
func prefixes(texts []string) (all []netip.Prefix, err error) {
	if len(texts) > maxPrefixes {
		return nil, fmt.Errorf("a list of clients has %d prefixes [the limit is %d]", len(texts), maxPrefixes)
	}
	for _, text := range texts {
		text = strings.TrimSpace(text)
		p, err := netip.ParsePrefix(text)
		if a, e := netip.ParseAddr(text); e == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q is no prefix of clients [write 192.0.2.0/24]", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

func (r *RateLimitSpec) limits() (*Limits, error) {
	if r == nil {
		return nil, nil
	}
	l := &Limits{Burst: r.Burst, Connections: r.Connections, Code: r.Code}
	if r.RequestsPerSecond != "" {
		n, err := strconv.ParseFloat(r.RequestsPerSecond, 64)
		if err != nil || n < 0 || math.IsNaN(n) || math.IsInf(n, 0) {
			return nil, fmt.Errorf("requestsPerSecond %q is no number", r.RequestsPerSecond)
		}
		l.PerSecond = n
	}
	var err error
	l.Exempt, err = prefixes(r.Exempt)
	return l, err
}

// maxUsers is the number of users of one Secret.
const maxUsers = 10000

// basicAuth reads the users of a Secret. kind is auth-file (htpasswd lines in the key auth) or auth-map (a key for each
// user). A line that cannot be read lets nobody in.
func (c *Compiler) basicAuth(reader, from Ref, name api.Name, kind, realm string) (*BasicAuth, error) {
	if !c.allowed(reader, from, KindSecret, name) {
		return nil, fmt.Errorf("no ReferenceGrant in namespace %s lets %s %s use Secret %s", name.Namespace, from.Kind, from.Name, name)
	}
	secret, _ := c.read(reader, KindSecret, name).(*Secret)
	if secret == nil {
		return nil, fmt.Errorf("Secret %s %w", name, errNoObject)
	}
	auth := &BasicAuth{Realm: realm, Users: map[string]string{}}
	if kind == "auth-map" {
		for user, hash := range secret.Data {
			auth.add(user, string(hash))
		}
	} else {
		for line := range strings.Lines(string(secret.Data["auth"])) {
			user, hash, _ := strings.Cut(strings.TrimSpace(line), ":")
			auth.add(user, hash)
		}
	}
	switch {
	case len(auth.Users) == 0:
		return nil, fmt.Errorf("Secret %s has no user with a hash of bcrypt, apr1 or SHA [make one with htpasswd -B]", name)
	case len(auth.Users) > maxUsers:
		return nil, fmt.Errorf("Secret %s has more than %d users", name, maxUsers)
	}
	return auth, nil
}

func (b *BasicAuth) add(user, hash string) {
	for _, prefix := range []string{"$2a$", "$2b$", "$2y$", "$apr1$", "{SHA}"} {
		if user != "" && strings.HasPrefix(hash, prefix) {
			b.Users[user] = hash
		}
	}
}

// checkAuthURL refuses servers that a tenant must not make the gateway call: Services of other namespaces without a
// ReferenceGrant, and the gateway's own host and link.
func (c *Compiler) checkAuthURL(reader, from Ref, text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Errorf("%q is no URL of an authentication server [write http://SERVICE.NAMESPACE.svc.cluster.local/PATH]", text)
	}
	host := lower(u.Hostname())
	if a, err := netip.ParseAddr(host); err == nil {
		if a = a.Unmap(); a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast() {
			return fmt.Errorf("authentication server %s is the gateway's own host or link", host)
		}
		return nil
	}
	labels := strings.Split(host, ".")
	switch {
	case host == "localhost":
		return fmt.Errorf("authentication server %s is the gateway's own host", host)
	case len(labels) < 2:
		return fmt.Errorf("authentication server %q lacks its namespace [write %s.%s.svc.cluster.local]", host, host, from.Namespace)
	case len(labels) >= 3 && labels[2] == "svc" || len(labels) == 2:
		service := api.Name{Namespace: labels[1], Name: labels[0]}
		if !c.allowed(reader, from, KindService, service) {
			return fmt.Errorf("no ReferenceGrant in namespace %s lets %s %s use Service %s", service.Namespace, from.Kind, from.Name, service)
		}
	}
	return nil
}

// reportRoutePolicy publishes the status of a policy: an ancestor for each Gateway of its targets. A target without a
// Gateway of ours is an ancestor itself.
func (c *Compiler) reportRoutePolicy(ref Ref) {
	c.reads.forget(ref)
	p, _ := c.objects[ref].(*RoutePolicy)
	if p == nil {
		c.reports.drop(ref)
		return
	}
	var cs conditions
	switch missing := c.missingTarget(p); {
	case missing != "":
		cs.set(accepted, false, reasonTargetNotFound, missing+" does not exist")
	case !c.routePolicyInForce(p):
		cs.set(accepted, false, reasonConflicted, "an older RoutePolicy has the same target")
	default:
		// The rule is only a place to write to: the first fault is the policy's own.
		rule := &Rule{Route: ref}
		if err := c.apply(p, rule); err != nil {
			cs.set(accepted, false, reasonInvalid, err.Error())
		} else {
			cs.good(accepted)
		}
	}
	ancestors := c.gatewaysOf(listsOf(p))
	if len(ancestors) == 0 {
		for _, t := range p.Targets {
			t.Namespace = p.Namespace
			ancestors = append(ancestors, t)
		}
	}
	c.reportPolicy(p, cs, ancestors)
}

// missingTarget returns the first target that does not exist or cannot have a policy.
func (c *Compiler) missingTarget(p *RoutePolicy) string {
	for _, t := range p.Targets {
		name := api.Name{Namespace: p.Namespace, Name: t.Name}
		kind := Kind(t.Kind)
		if t.Group != Group || kind != KindHTTPRoute && kind != KindGRPCRoute || c.read(p.Ref(), kind, name) == nil {
			return t.Kind + " " + t.Name
		}
	}
	return ""
}

// routePolicyInForce reports whether a policy is the oldest one for at least one of its targets.
func (c *Compiler) routePolicyInForce(p *RoutePolicy) bool {
	for _, t := range p.Targets {
		route := Ref{Kind(t.Kind), api.Name{Namespace: p.Namespace, Name: t.Name}}
		for _, o := range list[*RoutePolicy](c, p.Ref(), policyList(t.Kind, route.Name)) {
			if o == p {
				return true
			}
			if o.targets(route, t.Section) {
				break
			}
		}
	}
	return len(p.Targets) == 0
}
