package ingress

import (
	"cmp"
	"regexp"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// addCanary joins the backends of a canary with the rules of the Ingress that has its hosts and paths.
func (m *migration) addCanary(g *networkingv1.Ingress, meaning *meaning) {
	for _, s := range sites(g) {
		for _, p := range s.paths {
			main := m.primaries[primaryKey{g.Namespace, s.host, p.Path}]
			if main == nil {
				m.note(g, Lost, "canary", "no Ingress of this namespace has host %s and path %s: ingress-nginx ignores it, too", cmp.Or(s.host, "*"), cmp.Or(p.Path, "/"))
				continue
			}
			if main.joined {
				m.note(g, Differs, "canary", "an older canary of host %s and path %s counts", cmp.Or(s.host, "*"), cmp.Or(p.Path, "/"))
				continue
			}
			if b, ok := m.backend(g, meaning, p.Backend); ok {
				main.joined = true
				m.joinCanary(meaning, main, b)
			}
		}
	}
}

// joinCanary adds the canary's backend: by weight to the rule itself, by header or cookie as rules after it, which come
// first because they have a header.
func (m *migration) joinCanary(meaning *meaning, main *primary, canary gatewayv1.HTTPBackendRef) {
	c, rule := meaning.Canary, main.route.Spec.Rules[main.rule]
	plain := slices.Clone(rule.BackendRefs)
	add := func(match gatewayv1.HTTPHeaderMatch, backends ...gatewayv1.HTTPBackendRef) {
		main.route.Spec.Rules = append(main.route.Spec.Rules, canaryRule(rule, match, backends...))
	}
	if c.Header != "" {
		match := gatewayv1.HTTPHeaderMatch{Name: gatewayv1.HTTPHeaderName(c.Header), Type: new(gatewayv1.HeaderMatchExact), Value: cmp.Or(c.Value, "always")}
		if c.Pattern != "" && c.Value == "" {
			match.Type, match.Value = new(gatewayv1.HeaderMatchRegularExpression), ".*(?:"+c.Pattern+").*"
		}
		add(match, canary)
		if c.Value == "" && c.Pattern == "" && (c.Weight > 0 || c.Cookie != "") {
			match.Value = "never"
			add(match, plain...)
		}
	}
	if c.Cookie != "" {
		add(cookieMatch(c.Cookie, "always"), canary)
		if c.Weight > 0 {
			add(cookieMatch(c.Cookie, "never"), plain...)
		}
	}
	if c.Weight > 0 {
		weighted := slices.Clone(plain)
		for i := range weighted {
			weighted[i].Weight = new(int32(c.Total - c.Weight))
		}
		canary.Weight = new(int32(c.Weight))
		main.route.Spec.Rules[main.rule].BackendRefs = append(weighted, canary)
	}
}

// cookieMatch matches requests that have a cookie with a value.
func cookieMatch(name, value string) gatewayv1.HTTPHeaderMatch {
	return gatewayv1.HTTPHeaderMatch{Name: "Cookie", Type: new(gatewayv1.HeaderMatchRegularExpression), Value: `(.*[;,]\s*)?` + regexp.QuoteMeta(name) + "=" + value + `(\s*[;,].*)?`}
}

// canaryRule returns a rule for the same requests with one header more.
func canaryRule(of gatewayv1.HTTPRouteRule, header gatewayv1.HTTPHeaderMatch, backends ...gatewayv1.HTTPBackendRef) gatewayv1.HTTPRouteRule {
	rule := *of.DeepCopy()
	for i := range rule.Matches {
		rule.Matches[i].Headers = append(rule.Matches[i].Headers, header)
	}
	rule.BackendRefs = nil
	for _, b := range backends {
		b.Weight = nil
		rule.BackendRefs = append(rule.BackendRefs, b)
	}
	return rule
}
