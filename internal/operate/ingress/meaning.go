package ingress

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube/gateway"
)

// prefix begins the annotations of ingress-nginx.
const prefix = "nginx.ingress.kubernetes.io/"

// A meaning is what the annotations of one Ingress ask for: as a gateway reads them, and in the words of Gateway API.
type meaning struct {
	*gateway.Annotations
	filters      []gatewayv1.HTTPRouteFilter
	redirect     *gatewayv1.HTTPRequestRedirectFilter // answers all requests
	upstreamHost string
	policy       *RoutePolicySpec // nil: none
}

// A reader translates the annotations of one Ingress.
type reader struct {
	*migration
	*meaning
	g *networkingv1.Ingress
}

// read reads all annotations.
func (m *migration) read(g *networkingv1.Ingress) *meaning {
	r := &reader{m, &meaning{Annotations: gateway.ReadAnnotations(g)}, g}
	for _, n := range r.Notes {
		severity := Lost
		if n.Needless() {
			severity = Needless
		}
		r.note(g, severity, n.Annotation, "%s", n.Text)
	}
	r.headers()
	r.cors()
	r.mirror()
	r.redirectTo()
	if r.Filters.Rewrite != nil {
		r.upstreamHost = r.form("upstream-vhost", r.Filters.Rewrite.Host, hostForm, "a host name")
	}
	r.readPolicy()
	return r.meaning
}

// shut closes the routes of the Ingress, because they lack something that keeps requests out.
func (r *reader) shut(key, format string, args ...any) {
	r.note(r.g, Lost, key, format+"; until then its paths answer 500", args...)
	r.Closed = cmp.Or(r.Closed, key)
}

// headers translates headers for backends and for clients.
func (r *reader) headers() {
	if c := r.Filters.RequestHeaders; c != nil {
		const key = "x-forwarded-prefix"
		if value := c.Set[0].Value; strings.Contains(value, "$") {
			r.note(r.g, Lost, key, "%q: a header cannot have groups of a regular expression", value)
		} else {
			r.filters = append(r.filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterRequestHeaderModifier, RequestHeaderModifier: gateway.HeaderFilter(c)})
		}
	}
	if r.Headers == (api.Name{}) {
		return
	}
	if m := r.ConfigMaps[r.Headers]; m == nil {
		r.note(r.g, Lost, "custom-headers", "ConfigMap %s is not there", r.Headers)
	} else {
		r.filters = append(r.filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterResponseHeaderModifier, ResponseHeaderModifier: gateway.HeaderFilter(gateway.SetHeaders(m))})
	}
}

func (r *reader) cors() {
	c := r.Filters.CORS
	if c == nil {
		return
	}
	f := &gatewayv1.HTTPCORSFilter{MaxAge: int32(c.MaxAge.Seconds()), AllowCredentials: &c.Credentials}
	for _, o := range c.Origins {
		f.AllowOrigins = append(f.AllowOrigins, gatewayv1.CORSOrigin(o))
	}
	for _, v := range c.Methods {
		f.AllowMethods = append(f.AllowMethods, gatewayv1.HTTPMethodWithWildcard(v))
	}
	for _, v := range c.Headers {
		f.AllowHeaders = append(f.AllowHeaders, gatewayv1.HTTPHeaderName(v))
	}
	for _, v := range c.Expose {
		f.ExposeHeaders = append(f.ExposeHeaders, gatewayv1.HTTPHeaderName(v))
	}
	r.filters = append(r.filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterCORS, CORS: f})
}

// mirror translates mirror-target, if the mirror gets the request's own path.
func (r *reader) mirror() {
	const key = "mirror-target"
	t := r.Mirror
	if t == nil {
		return
	}
	if t.Path != "" {
		r.note(r.g, Lost, key, "a mirror gets the request's path: write http://%s.%s.svc.cluster.local$request_uri, or add a RequestMirror filter", t.Service.Name, t.Service.Namespace)
		return
	}
	ref := gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(t.Service.Name), Port: new(gatewayv1.PortNumber(t.Port))}
	if t.Service.Namespace != r.g.Namespace {
		ref.Namespace = new(gatewayv1.Namespace(t.Service.Namespace))
		r.note(r.g, Differs, key, "a ReferenceGrant of namespace %s has to allow HTTPRoutes of namespace %s", t.Service.Namespace, r.g.Namespace)
	}
	r.filters = append(r.filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterRequestMirror, RequestMirror: &gatewayv1.HTTPRequestMirrorFilter{BackendRef: ref}})
}

// redirectTo translates permanent-redirect and temporal-redirect. The target's path replaces the request's, as in
// ingress-nginx, unless it ends in $request_uri.
func (r *reader) redirectTo() {
	from := r.Filters.Redirect
	if from == nil {
		return
	}
	key := "permanent-redirect"
	if strings.TrimSpace(r.g.Annotations[prefix+"temporal-redirect"]) == from.URL {
		key = "temporal-redirect"
	}
	target, keepPath := strings.CutSuffix(from.URL, "$request_uri")
	u, err := url.Parse(target)
	if err != nil || strings.Contains(target, "$") || u.RawQuery != "" || u.Fragment != "" || keepPath && strings.Trim(u.Path, "/") != "" {
		r.note(r.g, Lost, key, "%q: a redirect has a scheme, a host, a port and a path, without variables and query", from.URL)
		return
	}
	f := &gatewayv1.HTTPRequestRedirectFilter{StatusCode: &from.Code}
	if !slices.Contains([]int{301, 302, 303, 307, 308}, from.Code) {
		r.note(r.g, Differs, key+"-code", "%d is not 301, 302, 303, 307 or 308: it is 302", from.Code)
		f.StatusCode = new(302)
	}
	if u.Scheme != "" {
		f.Scheme = &u.Scheme
	}
	if u.Hostname() != "" {
		f.Hostname = new(gatewayv1.PreciseHostname(u.Hostname()))
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		f.Port = new(gatewayv1.PortNumber(port))
	}
	if !keepPath {
		f.Path = fullPath(cmp.Or(u.Path, "/"))
		r.note(r.g, Differs, key, "the query of the request is added to the target, which has the path %s", cmp.Or(u.Path, "/"))
	}
	r.redirect = f
}

// matchesRoot reports whether a path of the Ingress has the request for / .
func (m *meaning) matchesRoot(path string) bool {
	if !m.isRegex() {
		return path == "" || path == "/"
	}
	re, err := regexp.Compile("(?i)^(?:" + cmp.Or(path, "/") + ")")
	return err == nil && re.MatchString("/")
}

// isRegex reports whether all paths of the Ingress are regular expressions.
func (m *meaning) isRegex() bool { return m.Regex || m.rewriteTarget() != "" }

func (m *meaning) rewriteTarget() string {
	if m.Filters.Rewrite == nil {
		return ""
	}
	return m.Filters.Rewrite.Target
}
