package ingress

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"

	networkingv1 "k8s.io/api/networking/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// isCanary reports whether an Ingress is a canary: it joins the rules of another Ingress with the same host and path.
func isCanary(g *networkingv1.Ingress) bool { return g.Annotations[prefix+"canary"] == "true" }

// addCanary joins the backends of a canary with the rules of the Ingress that has its hosts and paths.
func (m *migration) addCanary(g *networkingv1.Ingress) {
	meaning := m.read(g)
	for _, s := range sites(g) {
		for _, p := range s.paths {
			main := m.primaries[primaryKey{g.Namespace, s.host, p.Path}]
			if main == nil {
				m.note(g, Lost, "canary", "no Ingress of this namespace has host %s and path %s: ingress-nginx ignores it, too", cmp.Or(s.host, "*"), cmp.Or(p.Path, "/"))
				continue
			}
			if b, ok := m.backend(g, meaning, p.Backend); ok {
				m.joinCanary(g, main, b)
			}
		}
	}
}

// joinCanary adds the canary's backend: by weight to the rule itself, by header or cookie as rules before it.
func (m *migration) joinCanary(g *networkingv1.Ingress, main *primary, canary gatewayv1.HTTPBackendRef) {
	get := func(key string) string { return g.Annotations[prefix+key] }
	rule := main.route.Spec.Rules[main.rule]
	plain := slices.Clone(rule.BackendRefs)
	if text := get("canary-weight"); text != "" {
		weight, total := m.canaryWeight(g, text, get("canary-weight-total"))
		for i := range rule.BackendRefs {
			rule.BackendRefs[i].Weight = new(total - weight)
		}
		canary.Weight = &weight
		main.route.Spec.Rules[main.rule].BackendRefs = append(rule.BackendRefs, canary)
		canary.Weight = nil
	}
	if header := get("canary-by-header"); header != "" {
		match := gatewayv1.HTTPHeaderMatch{Name: gatewayv1.HTTPHeaderName(header), Type: new(gatewayv1.HeaderMatchExact), Value: cmp.Or(get("canary-by-header-value"), "always")}
		if pattern := get("canary-by-header-pattern"); pattern != "" && get("canary-by-header-value") == "" {
			match.Type, match.Value = new(gatewayv1.HeaderMatchRegularExpression), pattern
		}
		main.route.Spec.Rules = append(main.route.Spec.Rules, canaryRule(rule, match, canary))
		if match.Value == "always" && get("canary-weight") != "" {
			match.Value = "never"
			main.route.Spec.Rules = append(main.route.Spec.Rules, canaryRule(rule, match, plain...))
		}
	}
	if cookie := get("canary-by-cookie"); cookie != "" {
		main.route.Spec.Rules = append(main.route.Spec.Rules, canaryRule(rule, cookieMatch(cookie, "always"), canary))
		if get("canary-weight") != "" {
			main.route.Spec.Rules = append(main.route.Spec.Rules, canaryRule(rule, cookieMatch(cookie, "never"), plain...))
		}
	}
}

// cookieMatch matches requests that have a cookie with a value.
func cookieMatch(name, value string) gatewayv1.HTTPHeaderMatch {
	return gatewayv1.HTTPHeaderMatch{Name: "Cookie", Type: new(gatewayv1.HeaderMatchRegularExpression), Value: `(^|.*;\s*)` + regexp.QuoteMeta(name) + "=" + value + "(;.*|$)"}
}

// canaryWeight returns a canary's weight and the total, 100 by default.
func (m *migration) canaryWeight(g *networkingv1.Ingress, text, totalText string) (weight, total int32) {
	total = 100
	if n, err := strconv.ParseInt(totalText, 10, 20); err == nil && n > 0 {
		total = int32(n)
	}
	n, err := strconv.ParseInt(text, 10, 20)
	if err != nil || n < 0 {
		m.note(g, Lost, "canary-weight", "%q is not a number from 0 to %d: the canary gets nothing", text, total)
		return 0, total
	}
	return min(int32(n), total), total
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
