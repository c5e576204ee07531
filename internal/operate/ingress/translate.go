package ingress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube/gateway"
)

// A primaryKey is a path of a host in a namespace. A canary joins the rule with its key.
type primaryKey struct{ namespace, host, path string }

// A primary is a rule that canaries may join.
type primary struct {
	route *gatewayv1.HTTPRoute
	rule  int
}

// A site is one host of an Ingress with its paths.
type site struct {
	host  string // empty: all hosts
	paths []networkingv1.HTTPIngressPath
}

// sites returns the hosts of an Ingress, each once, in the order of the rules. An Ingress with a default backend alone is
// a site for all hosts.
func sites(g *networkingv1.Ingress) []site {
	var all []site
	for _, r := range g.Spec.Rules {
		i := slices.IndexFunc(all, func(s site) bool { return s.host == r.Host })
		if i < 0 {
			i, all = len(all), append(all, site{host: r.Host})
		}
		if r.HTTP != nil {
			all[i].paths = append(all[i].paths, r.HTTP.Paths...)
		}
	}
	if d := g.Spec.DefaultBackend; d != nil {
		if len(all) == 0 {
			all = append(all, site{})
		}
		prefix := networkingv1.PathTypePrefix
		for i := range all {
			if !slices.ContainsFunc(all[i].paths, func(p networkingv1.HTTPIngressPath) bool { return p.Path == "" || p.Path == "/" }) {
				all[i].paths = append(all[i].paths, networkingv1.HTTPIngressPath{Path: "/", PathType: &prefix, Backend: *d})
			}
		}
	}
	return all
}

// findRegexHosts records the hosts on which an Ingress asks for regular expressions.
func (m *migration) findRegexHosts(g *networkingv1.Ingress) {
	if g.Annotations[prefix+"use-regex"] != "true" && g.Annotations[prefix+"rewrite-target"] == "" {
		return
	}
	for _, s := range sites(g) {
		if m.regexHosts[s.host] == "" {
			m.regexHosts[s.host] = g.Namespace + "/" + g.Name
		}
	}
}

// translate makes the routes of an Ingress that is no canary.
func (m *migration) translate(g *networkingv1.Ingress) {
	meaning := m.read(g)
	for _, s := range sites(g) {
		if meaning.passthrough {
			m.passTLS(g, s)
			continue
		}
		name := g.Name
		if len(sites(g)) > 1 {
			name = shortName(g.Name+"-"+strings.ReplaceAll(cmp.Or(s.host, "all"), "*", "wildcard"), 253)
		}
		m.site(g, meaning, s, name)
	}
}

// site makes the routes of one host: the rules, and a redirect to TLS where ingress-nginx makes one.
func (m *migration) site(g *networkingv1.Ingress, meaning *meaning, s site, name string) {
	hosts := hostnames(append([]string{s.host}, meaning.aliases...))
	plain := gatewayv1.ParentReference{Name: gatewayv1.ObjectName(m.Gateway.Name), Namespace: new(gatewayv1.Namespace(m.Gateway.Namespace)), SectionName: new(gatewayv1.SectionName("http"))}
	parents := []gatewayv1.ParentReference{plain}
	if secret, ok := secretFor(g, s.host); ok {
		if secret == "" {
			m.note(g, Lost, "spec.tls", "host %s has no secretName: ingress-nginx serves its default certificate. Name a Secret in the ListenerSet", cmp.Or(s.host, "*"))
		} else {
			secure := gatewayv1.ParentReference{Group: new(gatewayv1.Group(gatewayv1.GroupName)), Kind: new(gatewayv1.Kind("ListenerSet")),
				Name: gatewayv1.ObjectName(m.Gateway.Name), SectionName: new(m.addListener(g.Namespace, s.host, secret, gatewayv1.TLSModeTerminate))}
			if parents = append(parents, secure); meaning.sslRedirect {
				m.addRoute(g, name+"-to-https", hosts, []gatewayv1.ParentReference{plain}, redirectRule("https"))
				parents = []gatewayv1.ParentReference{secure}
			}
		}
	} else if meaning.forceSSLRedirect {
		m.note(g, Differs, "force-ssl-redirect", "TLS ends before the cluster, so the redirect depends on X-Forwarded-Proto: let the machine that ends TLS redirect")
	}
	rules := m.rules(g, meaning, s)
	if len(rules) == 0 {
		return
	}
	route := m.addRoute(g, name, hosts, parents, rules...)
	for i, p := range s.paths {
		if key := (primaryKey{g.Namespace, s.host, p.Path}); m.primaries[key] == nil && meaning.redirect == nil {
			m.primaries[key] = &primary{route: route, rule: i + len(rules) - len(s.paths)}
		}
	}
	if meaning.needsPolicy() {
		p := &RoutePolicy{TypeMeta: gateway.RoutePolicyType,
			ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}, Spec: meaning.policy}
		p.Spec.TargetRefs = []PolicyTarget{{Group: gatewayv1.GroupName, Kind: "HTTPRoute", Name: name}}
		m.policies = append(m.policies, p)
	}
	m.wwwRedirect(g, meaning, s, name, parents)
}

// rules returns the rules of one host. A redirect of the whole Ingress is one rule. An app root is a rule before the
// paths.
func (m *migration) rules(g *networkingv1.Ingress, meaning *meaning, s site) []gatewayv1.HTTPRouteRule {
	if meaning.redirect != nil {
		return []gatewayv1.HTTPRouteRule{{Filters: []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: meaning.redirect}}}}
	}
	var rules []gatewayv1.HTTPRouteRule
	if meaning.appRoot != "" {
		rules = append(rules, gatewayv1.HTTPRouteRule{
			Matches: []gatewayv1.HTTPRouteMatch{{Path: pathMatch(gatewayv1.PathMatchExact, "/")}},
			Filters: []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{
				StatusCode: new(302), Path: fullPath(meaning.appRoot)}}},
		})
	}
	for _, p := range s.paths {
		rule := gatewayv1.HTTPRouteRule{Filters: slices.Clone(meaning.filters), Timeouts: meaning.timeouts}
		match, rewrite := m.path(g, meaning, s.host, p)
		rule.Matches = []gatewayv1.HTTPRouteMatch{{Path: match}}
		rule.Filters = appendRewrite(rule.Filters, meaning.upstreamHost, rewrite)
		if b, ok := m.backend(g, meaning, p.Backend); ok {
			rule.BackendRefs = append(rule.BackendRefs, b)
		}
		rules = append(rules, rule)
	}
	return rules
}

// path translates a path. ingress-nginx matches regular expressions without case, from the beginning, on each host where
// one Ingress asks for it.
func (m *migration) path(g *networkingv1.Ingress, meaning *meaning, host string, p networkingv1.HTTPIngressPath) (match *gatewayv1.HTTPPathMatch, rewrite *gatewayv1.HTTPPathModifier) {
	path, kind := cmp.Or(p.Path, "/"), networkingv1.PathTypeImplementationSpecific
	if p.PathType != nil {
		kind = *p.PathType
	}
	if meaning.rewriteTarget != "" {
		if match, rewrite, ok := rewritten(path, meaning.rewriteTarget); ok {
			return match, rewrite
		}
		m.note(g, Lost, "rewrite-target", "path %s to %s: a route cannot rewrite by the groups of a regular expression. Keep this path as an Ingress of class fairway, which can", path, meaning.rewriteTarget)
		return pathMatch(gatewayv1.PathMatchRegularExpression, "(?i)"+path+".*"), nil
	}
	if by := m.regexHosts[host]; by != "" && kind != networkingv1.PathTypeExact {
		if meaning.regex && isPattern(path) {
			return pathMatch(gatewayv1.PathMatchRegularExpression, "(?i)"+path+".*"), nil
		}
		m.note(g, Differs, "spec.rules", "path %s: on host %s ingress-nginx matches it without case and as a text's beginning, because %s asks for regular expressions. The route matches whole elements, with case", path, cmp.Or(host, "*"), by)
	}
	switch kind {
	case networkingv1.PathTypeExact:
		return pathMatch(gatewayv1.PathMatchExact, path), nil
	case networkingv1.PathTypeImplementationSpecific:
		if path != "/" && !strings.HasSuffix(path, "/") {
			m.note(g, Differs, "spec.rules", "path %s of type ImplementationSpecific: ingress-nginx matches %sx, too. The route matches %s and %s/…", path, path, path, path)
		}
	}
	return pathMatch(gatewayv1.PathMatchPathPrefix, cmp.Or(strings.TrimRight(path, "/"), "/")), nil
}

// backend translates a backend, and makes the BackendTLSPolicy of its Service where the Ingress asks for TLS.
func (m *migration) backend(g *networkingv1.Ingress, meaning *meaning, b networkingv1.IngressBackend) (gatewayv1.HTTPBackendRef, bool) {
	if b.Service == nil {
		m.note(g, Lost, "spec.rules", "a backend is a resource, not a Service: its paths answer 500")
		return gatewayv1.HTTPBackendRef{}, false
	}
	port := b.Service.Port.Number
	if name := b.Service.Port.Name; name != "" {
		if svc := m.Services[api.Name{Namespace: g.Namespace, Name: b.Service.Name}]; svc != nil {
			for _, p := range svc.Spec.Ports {
				if p.Name == name {
					port = p.Port
				}
			}
		}
		if port == 0 {
			m.note(g, Lost, "spec.rules", "Service %s has no port %q, or is not there: its paths answer 500", b.Service.Name, name)
			return gatewayv1.HTTPBackendRef{}, false
		}
	}
	m.speak(g, meaning, b.Service.Name, port)
	return gatewayv1.HTTPBackendRef{BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
		Name: gatewayv1.ObjectName(b.Service.Name), Port: new(gatewayv1.PortNumber(port))}}}, true
}

// passTLS makes a TLSRoute for a host whose TLS ends at the backend.
func (m *migration) passTLS(g *networkingv1.Ingress, s site) {
	if s.host == "" || len(s.paths) == 0 {
		m.note(g, Lost, "ssl-passthrough", "a rule without a host or a path cannot pass TLS on")
		return
	}
	b, ok := m.backend(g, &meaning{}, s.paths[0].Backend)
	if !ok {
		return
	}
	listener := m.addListener(g.Namespace, s.host, "", gatewayv1.TLSModePassthrough)
	m.tlsRoutes = append(m.tlsRoutes, &gatewayv1.TLSRoute{
		TypeMeta: typeMeta("TLSRoute"), ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: shortName(g.Name+"-"+s.host, 253)},
		Spec: gatewayv1.TLSRouteSpec{
			CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{{Group: new(gatewayv1.Group(gatewayv1.GroupName)), Kind: new(gatewayv1.Kind("ListenerSet")),
				Name: gatewayv1.ObjectName(m.Gateway.Name), SectionName: &listener}}},
			Hostnames: hostnames([]string{s.host}),
			Rules:     []gatewayv1.TLSRouteRule{{BackendRefs: []gatewayv1.BackendRef{b.BackendRef}}},
		},
	})
	if len(s.paths) > 1 {
		m.note(g, Differs, "ssl-passthrough", "host %s: only the backend of path %s counts, in ingress-nginx too", s.host, cmp.Or(s.paths[0].Path, "/"))
	}
}

// wwwRedirect adds the route that leads www.HOST to HOST, or HOST to www.HOST.
func (m *migration) wwwRedirect(g *networkingv1.Ingress, meaning *meaning, s site, name string, parents []gatewayv1.ParentReference) {
	if !meaning.fromToWWW || s.host == "" || strings.HasPrefix(s.host, "*") {
		return
	}
	other, isWWW := strings.CutPrefix(s.host, "www.")
	if !isWWW {
		other = "www." + s.host
	}
	target := gatewayv1.PreciseHostname(s.host)
	m.addRoute(g, name+"-from-www", hostnames([]string{other}), parents, gatewayv1.HTTPRouteRule{Filters: []gatewayv1.HTTPRouteFilter{{
		Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{Hostname: &target, StatusCode: new(308)}}}})
	if secret, ok := secretFor(g, s.host); ok && secret != "" {
		m.note(g, Differs, "from-to-www-redirect", "https://%s needs a listener whose certificate has this name", other)
	}
}

// addRoute adds an HTTPRoute.
func (m *migration) addRoute(g *networkingv1.Ingress, name string, hosts []gatewayv1.Hostname, parents []gatewayv1.ParentReference, rules ...gatewayv1.HTTPRouteRule) *gatewayv1.HTTPRoute {
	r := &gatewayv1.HTTPRoute{
		TypeMeta: typeMeta("HTTPRoute"), ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: shortName(name, 253)},
		Spec: gatewayv1.HTTPRouteSpec{CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: parents}, Hostnames: hosts, Rules: rules},
	}
	m.routes = append(m.routes, r)
	return r
}

// maxRules is the most rules of an HTTPRoute (Gateway API's CustomResourceDefinition).
const maxRules = 16

// splitRoute splits a route with too many rules.
func splitRoute(r *gatewayv1.HTTPRoute) []*gatewayv1.HTTPRoute {
	var parts []*gatewayv1.HTTPRoute
	for i, rules := range slices.Collect(slices.Chunk(r.Spec.Rules, maxRules)) {
		part := r.DeepCopy()
		if part.Spec.Rules = rules; i > 0 {
			part.Name = fmt.Sprintf("%s-%d", shortName(r.Name, 250), i+1)
		}
		parts = append(parts, part)
	}
	return parts
}

// secretFor returns the Secret of a host's certificate, and whether the Ingress has TLS for the host.
func secretFor(g *networkingv1.Ingress, host string) (secret string, ok bool) {
	for _, t := range g.Spec.TLS {
		if len(t.Hosts) == 0 && host == "" {
			return t.SecretName, true
		}
		for _, h := range t.Hosts {
			if h == host || strings.HasPrefix(h, "*.") && strings.Contains(host, ".") && host[strings.Index(host, "."):] == h[1:] {
				return t.SecretName, true
			}
		}
	}
	return "", false
}
