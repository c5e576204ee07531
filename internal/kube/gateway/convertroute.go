package gateway

import (
	"net/textproto"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/fairway-net/fairway/internal/gateway"
)

func routeCommon(o metav1.Object, spec *gatewayv1.CommonRouteSpec, hosts []gatewayv1.Hostname) gateway.RouteCommon {
	return gateway.RouteCommon{Meta: metaOf(o), Parents: parentRefs(spec.ParentRefs), Hostnames: texts(hosts)}
}

func convertHTTPRoute(o *gatewayv1.HTTPRoute) gateway.Object {
	r := &gateway.HTTPRoute{RouteCommon: routeCommon(o, &o.Spec.CommonRouteSpec, o.Spec.Hostnames)}
	for i := range o.Spec.Rules {
		r.Rules = append(r.Rules, httpRule(&o.Spec.Rules[i]))
	}
	return r
}

func httpRule(o *gatewayv1.HTTPRouteRule) gateway.HTTPRule {
	r := gateway.HTTPRule{Name: text(o.Name), Filters: httpFilters(o.Filters), Session: session(o.SessionPersistence)}
	for i := range o.Matches {
		r.Matches = append(r.Matches, httpMatch(&o.Matches[i]))
	}
	for i := range o.BackendRefs {
		b := backendRef(&o.BackendRefs[i].BackendRef)
		b.Filters = httpFilters(o.BackendRefs[i].Filters)
		r.Backends = append(r.Backends, b)
	}
	if t := o.Timeouts; t != nil {
		var ok, okBackend bool
		r.Timeout, ok = duration(t.Request)
		r.BackendTimeout, okBackend = duration(t.BackendRequest)
		r.BadTimeouts = !ok || !okBackend
	}
	if t := o.Retry; t != nil {
		r.Retry = &gateway.Retry{}
		for _, c := range t.Codes {
			r.Retry.Codes = append(r.Retry.Codes, int(c))
		}
		if t.Attempts != nil {
			r.Retry.Attempts = *t.Attempts
		}
		backoff, ok := duration(t.Backoff)
		r.Retry.Backoff, r.BadTimeouts = backoff, r.BadTimeouts || !ok
	}
	return r
}

// duration reads a duration of Gateway API (GEP-2257), which is a subset of Go's.
func duration(d *gatewayv1.Duration) (time.Duration, bool) {
	if d == nil {
		return 0, true
	}
	v, err := time.ParseDuration(string(*d))
	return v, err == nil && v >= 0
}

func session(o *gatewayv1.SessionPersistence) *gateway.Session {
	if o == nil {
		return nil
	}
	s := &gateway.Session{Name: text(o.SessionName), Header: text(o.Type) == string(gatewayv1.HeaderBasedSessionPersistence)}
	if c := o.CookieConfig; c != nil && text(c.LifetimeType) == string(gatewayv1.PermanentCookieLifetimeType) {
		s.Lifetime, _ = duration(o.AbsoluteTimeout)
	}
	return s
}

func httpMatch(o *gatewayv1.HTTPRouteMatch) gateway.HTTPMatch {
	m := gateway.HTTPMatch{Method: text(o.Method)}
	if o.Path != nil {
		m.Path = gateway.StringMatch{Type: text(o.Path.Type), Value: text(o.Path.Value)}
	}
	for _, h := range o.Headers {
		m.Headers = append(m.Headers, gateway.NamedMatch{Name: string(h.Name), StringMatch: gateway.StringMatch{Type: text(h.Type), Value: h.Value}})
	}
	for _, q := range o.QueryParams {
		m.Query = append(m.Query, gateway.NamedMatch{Name: string(q.Name), StringMatch: gateway.StringMatch{Type: text(q.Type), Value: q.Value}})
	}
	return m
}

func httpFilters(all []gatewayv1.HTTPRouteFilter) (out []gateway.FilterSpec) {
	for i := range all {
		o := &all[i]
		f := gateway.FilterSpec{
			Type: string(o.Type), RequestHeaders: headerChange(o.RequestHeaderModifier), ResponseHeaders: headerChange(o.ResponseHeaderModifier),
			Mirror: mirror(o.RequestMirror), Redirect: redirect(o.RequestRedirect), CORS: cors(o.CORS), Extension: extension(o.ExtensionRef),
		}
		if o.URLRewrite != nil {
			f.Rewrite = &gateway.Rewrite{Host: text(o.URLRewrite.Hostname), Path: pathChange(o.URLRewrite.Path)}
		}
		out = append(out, f)
	}
	return out
}

func extension(o *gatewayv1.LocalObjectReference) *gateway.ObjectRef {
	if o == nil {
		return nil
	}
	return &gateway.ObjectRef{GroupKind: groupKind(string(o.Group), string(o.Kind)), Name: string(o.Name)}
}

func headerChange(o *gatewayv1.HTTPHeaderFilter) *gateway.HeaderChange {
	if o == nil {
		return nil
	}
	c := &gateway.HeaderChange{Set: headers(o.Set), Add: headers(o.Add)}
	for _, name := range o.Remove {
		c.Remove = append(c.Remove, textproto.CanonicalMIMEHeaderKey(name))
	}
	return c
}

func headers(all []gatewayv1.HTTPHeader) (out []gateway.Header) {
	for _, h := range all {
		out = append(out, gateway.Header{Name: textproto.CanonicalMIMEHeaderKey(string(h.Name)), Value: h.Value})
	}
	return out
}

func mirror(o *gatewayv1.HTTPRequestMirrorFilter) *gateway.MirrorSpec {
	if o == nil {
		return nil
	}
	m := &gateway.MirrorSpec{Backend: backendObject(&o.BackendRef)}
	const percent = 100
	switch {
	case o.Fraction != nil:
		m.Numerator, m.Denominator = uint32(max(o.Fraction.Numerator, 0)), percent
		if o.Fraction.Denominator != nil {
			m.Denominator = uint32(max(*o.Fraction.Denominator, 1))
		}
	case o.Percent != nil:
		m.Numerator, m.Denominator = uint32(max(*o.Percent, 0)), percent
	}
	return m
}

func redirect(o *gatewayv1.HTTPRequestRedirectFilter) *gateway.Redirect {
	if o == nil {
		return nil
	}
	r := &gateway.Redirect{Scheme: text(o.Scheme), Host: text(o.Hostname), Port: optionalPort(o.Port), Path: pathChange(o.Path)}
	if o.StatusCode != nil {
		r.Code = *o.StatusCode
	}
	return r
}

func pathChange(o *gatewayv1.HTTPPathModifier) *gateway.PathChange {
	switch {
	case o == nil:
		return nil
	case o.Type == gatewayv1.PrefixMatchHTTPPathModifier:
		return &gateway.PathChange{Prefix: text(o.ReplacePrefixMatch), HasPrefix: true}
	}
	return &gateway.PathChange{Full: text(o.ReplaceFullPath)}
}

func cors(o *gatewayv1.HTTPCORSFilter) *gateway.CORS {
	if o == nil {
		return nil
	}
	return &gateway.CORS{
		Origins: texts(o.AllowOrigins), Methods: texts(o.AllowMethods), Headers: texts(o.AllowHeaders), Expose: texts(o.ExposeHeaders),
		Credentials: o.AllowCredentials != nil && *o.AllowCredentials, MaxAge: time.Duration(max(o.MaxAge, 0)) * time.Second,
	}
}

func convertGRPCRoute(o *gatewayv1.GRPCRoute) gateway.Object {
	r := &gateway.GRPCRoute{RouteCommon: routeCommon(o, &o.Spec.CommonRouteSpec, o.Spec.Hostnames)}
	for i := range o.Spec.Rules {
		r.Rules = append(r.Rules, grpcRule(&o.Spec.Rules[i]))
	}
	return r
}

func grpcRule(o *gatewayv1.GRPCRouteRule) gateway.GRPCRule {
	r := gateway.GRPCRule{Name: text(o.Name), Filters: grpcFilters(o.Filters), Session: session(o.SessionPersistence)}
	for _, m := range o.Matches {
		var match gateway.GRPCMatch
		if m.Method != nil {
			match = gateway.GRPCMatch{Type: text(m.Method.Type), Service: text(m.Method.Service), Method: text(m.Method.Method)}
		}
		for _, h := range m.Headers {
			match.Headers = append(match.Headers, gateway.NamedMatch{Name: string(h.Name), StringMatch: gateway.StringMatch{Type: text(h.Type), Value: h.Value}})
		}
		r.Matches = append(r.Matches, match)
	}
	for i := range o.BackendRefs {
		b := backendRef(&o.BackendRefs[i].BackendRef)
		b.Filters = grpcFilters(o.BackendRefs[i].Filters)
		r.Backends = append(r.Backends, b)
	}
	return r
}

func grpcFilters(all []gatewayv1.GRPCRouteFilter) (out []gateway.FilterSpec) {
	for i := range all {
		o := &all[i]
		out = append(out, gateway.FilterSpec{
			Type: string(o.Type), RequestHeaders: headerChange(o.RequestHeaderModifier), ResponseHeaders: headerChange(o.ResponseHeaderModifier),
			Mirror: mirror(o.RequestMirror), Extension: extension(o.ExtensionRef),
		})
	}
	return out
}

func convertTLSRoute(o *gatewayv1.TLSRoute) gateway.Object {
	r := &gateway.L4Route{RouteCommon: routeCommon(o, &o.Spec.CommonRouteSpec, o.Spec.Hostnames), Kind: gateway.KindTLSRoute}
	for i := range o.Spec.Rules {
		r.Rules = append(r.Rules, l4Rule(o.Spec.Rules[i].Name, o.Spec.Rules[i].BackendRefs))
	}
	return r
}

func convertTCPRoute(o *gatewayv1.TCPRoute) gateway.Object {
	r := &gateway.L4Route{RouteCommon: routeCommon(o, &o.Spec.CommonRouteSpec, nil), Kind: gateway.KindTCPRoute}
	for i := range o.Spec.Rules {
		r.Rules = append(r.Rules, l4Rule(o.Spec.Rules[i].Name, o.Spec.Rules[i].BackendRefs))
	}
	return r
}

func convertUDPRoute(o *gatewayv1.UDPRoute) gateway.Object {
	r := &gateway.L4Route{RouteCommon: routeCommon(o, &o.Spec.CommonRouteSpec, nil), Kind: gateway.KindUDPRoute}
	for i := range o.Spec.Rules {
		r.Rules = append(r.Rules, l4Rule(o.Spec.Rules[i].Name, o.Spec.Rules[i].BackendRefs))
	}
	return r
}

func l4Rule(name *gatewayv1.SectionName, backends []gatewayv1.BackendRef) gateway.L4Rule {
	r := gateway.L4Rule{Name: text(name)}
	for i := range backends {
		r.Backends = append(r.Backends, backendRef(&backends[i]))
	}
	return r
}
