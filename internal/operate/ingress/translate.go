package ingress

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube/gateway"
)

// A primaryKey is a path of a host in a namespace. A canary joins the rule with its key.
type primaryKey struct{ namespace, host, path string }

// A primary is a rule that a canary may join.
type primary struct {
	route  *gatewayv1.HTTPRoute
	rule   int
	joined bool
}

// A hostKey is a host in a namespace.
type hostKey struct{ namespace, host string }

// A site is one host of an Ingress with its paths.
type site struct {
	host  string // empty: all hosts
	paths []networkingv1.HTTPIngressPath
	own   []networkingv1.HTTPIngressPath // paths without the default backend
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
			all[i].own = all[i].paths
		}
	}
	if d := g.Spec.DefaultBackend; d != nil {
		if len(all) == 0 {
			all = append(all, site{})
		}
		prefix := networkingv1.PathTypePrefix
		for i := range all {
			if !slices.ContainsFunc(all[i].paths, takesAll) {
				all[i].paths = append(all[i].paths, networkingv1.HTTPIngressPath{Path: "/", PathType: &prefix, Backend: *d})
			}
		}
	}
	return all
}

// takesAll reports whether a path leaves nothing to the default backend.
func takesAll(p networkingv1.HTTPIngressPath) bool {
	return (p.Path == "" || p.Path == "/") && (p.PathType == nil || *p.PathType != networkingv1.PathTypeExact)
}

// findHosts records the hosts on which an Ingress asks for regular expressions, and the hosts of its certificates.
func (m *migration) findHosts(g *networkingv1.Ingress, meaning *meaning) {
	for _, s := range sites(g) {
		if meaning.isRegex() && m.regexHosts[s.host] == "" {
			m.regexHosts[s.host] = g.Namespace + "/" + g.Name
		}
		key := hostKey{g.Namespace, s.host}
		if secret, ok := gateway.SecretFor(g, s.host); ok && m.secrets[key] == "" {
			m.secrets[key] = secret
		}
	}
}

// hasTLS reports whether an Ingress has TLS for a host, with or without a Secret.
func hasTLS(g *networkingv1.Ingress, host string) bool {
	if _, ok := gateway.SecretFor(g, host); ok {
		return true
	}
	return slices.ContainsFunc(g.Spec.TLS, func(t networkingv1.IngressTLS) bool { return len(t.Hosts) == 0 || slices.Contains(t.Hosts, host) })
}

// isSolver reports whether an Ingress is one of cert-manager's, which lives while a certificate is made.
func (m *migration) isSolver(g networkingv1.Ingress) bool {
	if g.Labels["acme.cert-manager.io/http01-solver"] != "true" {
		return false
	}
	m.note(&g, Needless, "spec.rules", "cert-manager makes it for one challenge, and deletes it. For Gateways the Issuer has a solver http01.gatewayHTTPRoute")
	return true
}

// translate makes the routes of an Ingress that is no canary.
func (m *migration) translate(g *networkingv1.Ingress, meaning *meaning) {
	all := sites(g)
	for i, s := range all {
		if meaning.Passthrough {
			m.passTLS(g, s)
		}
		name := g.Name
		if len(all) > 1 {
			name = shortName(g.Name+"-"+strings.ReplaceAll(cmp.Or(s.host, "all"), "*", "wildcard"), 253)
		}
		m.site(g, meaning, s, name, i == 0 && len(g.Spec.Rules) > 0)
	}
}

// site makes the routes of one host: the rules, and a redirect to TLS where ingress-nginx makes one. The first host has the
// aliases.
func (m *migration) site(g *networkingv1.Ingress, meaning *meaning, s site, name string, first bool) {
	hosts := []string{s.host}
	if first {
		hosts = append(hosts, meaning.Aliases...)
	}
	secret := m.secrets[hostKey{g.Namespace, s.host}]
	parents := []gatewayv1.ParentReference{m.plain()}
	redirects := false
	switch {
	case secret != "":
		var secure []gatewayv1.ParentReference
		if !meaning.Passthrough {
			secure = m.secure(g.Namespace, hosts, secret)
		}
		parents = append(parents, secure...)
		if redirects = meaning.TLSRedirect || meaning.ForceTLS; redirects {
			m.addRoute(g, name+"-to-https", hosts, []gatewayv1.ParentReference{m.plain()}, redirectRule("https"))
			parents = secure
		}
	case hasTLS(g, s.host):
		m.note(g, Lost, "spec.tls", "host %s has no secretName: ingress-nginx serves its default certificate. Name a Secret in the ListenerSet", cmp.Or(s.host, "*"))
	}
	if meaning.ForceTLS && secret == "" {
		m.note(g, Differs, "force-ssl-redirect", "TLS ends before the cluster, so the redirect depends on X-Forwarded-Proto: let the machine that ends TLS redirect")
	}
	if len(parents) > 0 {
		m.serve(g, meaning, s, name, hosts, parents, redirects)
	}
	m.wwwRedirect(g, meaning, s, name, secret)
}

// serve makes the route of one host, and its policy.
func (m *migration) serve(g *networkingv1.Ingress, meaning *meaning, s site, name string, hosts []string, parents []gatewayv1.ParentReference, redirects bool) {
	rules, at := m.rules(g, meaning, s)
	if len(rules) == 0 {
		return
	}
	route := m.addRoute(g, name, hosts, parents, rules...)
	if meaning.Closed != "" {
		return
	}
	for i, p := range s.paths {
		if key := (primaryKey{g.Namespace, s.host, p.Path}); m.primaries[key] == nil {
			m.primaries[key] = &primary{route: route, rule: at + i}
		}
	}
	if meaning.policy == nil {
		return
	}
	p := &RoutePolicy{TypeMeta: gateway.RoutePolicyType, ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}, Spec: *meaning.policy}
	p.Spec.TargetRefs = []PolicyTarget{{Group: gatewayv1.GroupName, Kind: "HTTPRoute", Name: name}}
	if redirects && p.Spec.Clients != nil {
		p.Spec.TargetRefs = append(p.Spec.TargetRefs, PolicyTarget{Group: gatewayv1.GroupName, Kind: "HTTPRoute", Name: shortName(name+"-to-https", 253)})
	}
	m.policies = append(m.policies, p)
}

// plain refers to the Gateway's listener for HTTP.
func (m *migration) plain() gatewayv1.ParentReference {
	return gatewayv1.ParentReference{Name: gatewayv1.ObjectName(m.Gateway.Name), Namespace: new(gatewayv1.Namespace(m.Gateway.Namespace)), SectionName: new(gatewayv1.SectionName("http"))}
}

// secure adds TLS listeners for hosts, and refers to them.
func (m *migration) secure(namespace string, hosts []string, secret string) (all []gatewayv1.ParentReference) {
	for _, host := range hosts {
		listener := m.addListener(namespace, host, secret, gatewayv1.TLSModeTerminate)
		all = append(all, gatewayv1.ParentReference{
			Group: new(gatewayv1.Group(gatewayv1.GroupName)), Kind: new(gatewayv1.Kind("ListenerSet")), Name: gatewayv1.ObjectName(m.Gateway.Name), SectionName: &listener,
		})
	}
	return all
}

// rules returns the rules of one host, with the index of the first path's. An app root is a rule before the paths.
func (m *migration) rules(g *networkingv1.Ingress, meaning *meaning, s site) (rules []gatewayv1.HTTPRouteRule, at int) {
	if meaning.AppRoot != "" && slices.ContainsFunc(s.own, func(p networkingv1.HTTPIngressPath) bool { return meaning.matchesRoot(p.Path) }) {
		rules = append(rules, gatewayv1.HTTPRouteRule{
			Matches: []gatewayv1.HTTPRouteMatch{{Path: pathMatch(gatewayv1.PathMatchExact, "/")}},
			Filters: []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{
				StatusCode: new(302), Path: fullPath(meaning.AppRoot)}}},
		})
	}
	at = len(rules)
	for _, p := range s.paths {
		match, rewrite := m.path(g, meaning, s.host, p)
		rule := gatewayv1.HTTPRouteRule{Matches: []gatewayv1.HTTPRouteMatch{{Path: match}}}
		switch {
		case meaning.Closed != "": // a rule without backends answers 500
		case meaning.redirect != nil:
			rule.Filters = []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: meaning.redirect}}
		default:
			rule.Filters = appendRewrite(slices.Clone(meaning.filters), meaning.upstreamHost, rewrite)
			if b, ok := m.backend(g, meaning, p.Backend); ok {
				rule.BackendRefs = append(rule.BackendRefs, b)
			}
		}
		rules = append(rules, rule)
	}
	return rules, at
}

// path translates a path. ingress-nginx matches regular expressions without case, from the beginning, on each host where
// one Ingress asks for it.
func (m *migration) path(g *networkingv1.Ingress, meaning *meaning, host string, p networkingv1.HTTPIngressPath) (match *gatewayv1.HTTPPathMatch, rewrite *gatewayv1.HTTPPathModifier) {
	path, kind := cmp.Or(p.Path, "/"), networkingv1.PathTypeImplementationSpecific
	if p.PathType != nil {
		kind = *p.PathType
	}
	if target := meaning.rewriteTarget(); target != "" {
		if match, rewrite, ok := rewritten(path, target); ok && path == "/" {
			return match, rewrite
		} else if ok {
			m.note(g, Differs, "rewrite-target", "path %s: ingress-nginx matches without case, from the path's beginning. The route matches whole elements, with case", path)
			return match, rewrite
		}
		m.note(g, Lost, "rewrite-target", "path %s to %s: a route cannot rewrite by the groups of a regular expression. Keep this path as an Ingress of class fairway, which can", path, target)
		return pathMatch(gatewayv1.PathMatchRegularExpression, "(?i)"+path+".*"), nil
	}
	if by := m.regexHosts[host]; by != "" && path != "/" {
		if meaning.Regex && isPattern(path) {
			return pathMatch(gatewayv1.PathMatchRegularExpression, "(?i)"+path+".*"), nil
		}
		m.note(g, Differs, "spec.rules", "path %s: on host %s ingress-nginx matches it without case and as a text's beginning, because %s asks for regular expressions. The route matches whole elements, with case", path, cmp.Or(host, "*"), by)
	}
	switch kind {
	case networkingv1.PathTypeExact:
		return pathMatch(gatewayv1.PathMatchExact, path), nil
	case networkingv1.PathTypeImplementationSpecific:
		if bare := strings.TrimRight(path, "/"); bare != path && bare != "" {
			m.note(g, Differs, "spec.rules", "path %s of type ImplementationSpecific: the route matches %s, too", path, bare)
		} else if bare != "" {
			m.note(g, Differs, "spec.rules", "path %s of type ImplementationSpecific: ingress-nginx matches %sx, too. The route matches %s and %s/…", path, path, path, path)
		}
	}
	return pathMatch(gatewayv1.PathMatchPathPrefix, cmp.Or(strings.TrimRight(path, "/"), "/")), nil
}

// backend translates a backend, and makes the BackendTLSPolicy of its Service where the Ingress asks for TLS.
// meaning is nil if the connection is passed on as it is.
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
	if meaning != nil {
		m.speak(g, meaning, b.Service.Name, port)
	}
	return gatewayv1.HTTPBackendRef{BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
		Name: gatewayv1.ObjectName(b.Service.Name), Port: new(gatewayv1.PortNumber(port))}}}, true
}

// passTLS makes a TLSRoute for a host whose TLS ends at the backend.
func (m *migration) passTLS(g *networkingv1.Ingress, s site) {
	if s.host == "" || len(s.paths) == 0 {
		m.note(g, Lost, "ssl-passthrough", "a rule without a host or a path cannot pass TLS on")
		return
	}
	b, ok := m.backend(g, nil, s.paths[0].Backend)
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

// wwwRedirect adds the route that leads www.HOST to HOST, or HOST to www.HOST, unless the Ingress has both.
func (m *migration) wwwRedirect(g *networkingv1.Ingress, meaning *meaning, s site, name, secret string) {
	if !meaning.FromToWWW || s.host == "" || strings.HasPrefix(s.host, "*") {
		return
	}
	other, isWWW := strings.CutPrefix(s.host, "www.")
	if !isWWW {
		other = "www." + s.host
	}
	if slices.ContainsFunc(sites(g), func(s site) bool { return s.host == other }) {
		return
	}
	parents := []gatewayv1.ParentReference{m.plain()}
	if secret != "" && !meaning.Passthrough {
		parents = append(parents, m.secure(g.Namespace, []string{other}, secret)...)
		m.note(g, Differs, "from-to-www-redirect", "the certificate in Secret %s has to have the name %s, too", secret, other)
	}
	target := gatewayv1.PreciseHostname(s.host)
	m.addRoute(g, name+"-from-www", []string{other}, parents, gatewayv1.HTTPRouteRule{Filters: []gatewayv1.HTTPRouteFilter{{
		Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{Hostname: &target, StatusCode: new(308)}}}})
}

// addRoute adds an HTTPRoute.
func (m *migration) addRoute(g *networkingv1.Ingress, name string, hosts []string, parents []gatewayv1.ParentReference, rules ...gatewayv1.HTTPRouteRule) *gatewayv1.HTTPRoute {
	r := &gatewayv1.HTTPRoute{
		TypeMeta: typeMeta("HTTPRoute"), ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: shortName(name, 253)},
		Spec: gatewayv1.HTTPRouteSpec{CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: parents}, Hostnames: hostnames(hosts), Rules: rules},
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

// speak notes what a backend that does not speak clear HTTP/1.1 needs, and makes its BackendTLSPolicy.
func (m *migration) speak(g *networkingv1.Ingress, meaning *meaning, service string, port int32) {
	const key = "backend-protocol"
	name := api.Name{Namespace: g.Namespace, Name: service}
	if gateway.SpeaksHTTP2(meaning.Annotations) && !m.speaksH2C(name, port) {
		m.note(g, Lost, key, "GRPC: set appProtocol: kubernetes.io/h2c on port %d of Service %s", port, service)
	}
	t := meaning.BackendTLS
	if t == nil || m.backendTLS[name] != nil {
		return
	}
	system := gatewayv1.WellKnownCACertificatesSystem
	p := &gatewayv1.BackendTLSPolicy{TypeMeta: typeMeta("BackendTLSPolicy")}
	p.Namespace, p.Name = name.Namespace, name.Name
	p.Spec.TargetRefs = []gatewayv1.LocalPolicyTargetReferenceWithSectionName{{LocalPolicyTargetReference: gatewayv1.LocalPolicyTargetReference{Kind: "Service", Name: gatewayv1.ObjectName(service)}}}
	p.Spec.Validation.Hostname = gatewayv1.PreciseHostname(cmp.Or(t.ServerName, fmt.Sprintf("%s.%s.svc", service, g.Namespace)))
	p.Spec.Validation.WellKnownCACertificates = &system
	m.backendTLS[name] = p
	if t.Insecure {
		m.note(g, Differs, key, "ingress-nginx accepts any certificate of Service %s, a BackendTLSPolicy does not. Name the CA and the certificate's host in it", service)
	}
	if t.Secret != (api.Name{}) {
		m.note(g, Lost, "proxy-ssl-secret", "Secret %s: put its ca.crt into a ConfigMap and name it in the BackendTLSPolicy; a client certificate is named in the Gateway", t.Secret)
	}
}

// noteSharedTLS notes that TLS to a Service counts for all routes, also for those of an Ingress that does not ask for it.
func (m *migration) noteSharedTLS(g *networkingv1.Ingress, meaning *meaning) {
	if meaning.BackendTLS != nil || meaning.Closed != "" || meaning.redirect != nil {
		return
	}
	for _, s := range sites(g) {
		for _, p := range s.paths {
			if b := p.Backend.Service; b != nil && m.backendTLS[api.Name{Namespace: g.Namespace, Name: b.Name}] != nil {
				m.note(g, Differs, "backend-protocol", "path %s: Service %s gets TLS, because another Ingress asks for it. A BackendTLSPolicy counts for all routes", cmp.Or(p.Path, "/"), b.Name)
			}
		}
	}
}

// speaksH2C reports whether a Service's port says itself that it speaks HTTP/2.
func (m *migration) speaksH2C(name api.Name, port int32) bool {
	s := m.Services[name]
	return s != nil && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == port && p.AppProtocol != nil && *p.AppProtocol == "kubernetes.io/h2c"
	})
}
