package ingress

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// shortName returns the name if it has at most limit letters; otherwise its beginning and a hash of it.
func shortName(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:limit-9], "-.") + "-" + hex.EncodeToString(sum[:4])
}

// hostnames returns hosts as a route has them. A route without hosts serves all.
func hostnames(hosts []string) []gatewayv1.Hostname {
	var all []gatewayv1.Hostname
	for _, h := range hosts {
		if h != "" && !slices.Contains(all, gatewayv1.Hostname(h)) {
			all = append(all, gatewayv1.Hostname(h))
		}
	}
	return all
}

func pathMatch(kind gatewayv1.PathMatchType, value string) *gatewayv1.HTTPPathMatch {
	return &gatewayv1.HTTPPathMatch{Type: &kind, Value: &value}
}

func fullPath(path string) *gatewayv1.HTTPPathModifier {
	return &gatewayv1.HTTPPathModifier{Type: gatewayv1.FullPathHTTPPathModifier, ReplaceFullPath: &path}
}

// redirectRule returns a rule that leads all requests to another scheme.
func redirectRule(scheme string) gatewayv1.HTTPRouteRule {
	return gatewayv1.HTTPRouteRule{Filters: []gatewayv1.HTTPRouteFilter{{
		Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{Scheme: &scheme, StatusCode: new(308)}}}}
}

// appendRewrite adds a URLRewrite filter if the host or the path changes.
func appendRewrite(filters []gatewayv1.HTTPRouteFilter, host string, path *gatewayv1.HTTPPathModifier) []gatewayv1.HTTPRouteFilter {
	if host == "" && path == nil {
		return filters
	}
	f := &gatewayv1.HTTPURLRewriteFilter{Path: path}
	if host != "" {
		f.Hostname = new(gatewayv1.PreciseHostname(host))
	}
	return append(filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterURLRewrite, URLRewrite: f})
}

// isPattern reports whether a path has letters that mean something in a regular expression. A dot alone does not make
// one: paths have dots.
func isPattern(path string) bool { return strings.ContainsAny(path, `()[]{}*+?|^$\`) }

// groups are the forms in which ingress-nginx' documentation writes "this prefix, and what follows".
var groups = []string{"(/|$)(.*)", "/(.*)", "/?(.*)", "(.*)"}

// group matches a reference to a group of the path's pattern.
var group = regexp.MustCompile(`\$[0-9]`)

// rewritten translates the usual pairs of a path and a rewrite-target: a path without a pattern, whose requests all get
// one path because its groups are empty, and PREFIX(/|$)(.*) to TARGET$2, which replaces the prefix.
func rewritten(path, target string) (*gatewayv1.HTTPPathMatch, *gatewayv1.HTTPPathModifier, bool) {
	if one := group.ReplaceAllString(target, ""); !isPattern(path) && !strings.Contains(one, "$") {
		return pathMatch(gatewayv1.PathMatchPathPrefix, cmp.Or(strings.TrimRight(path, "/"), "/")), fullPath(cmp.Or(one, "/")), true
	}
	for _, g := range groups {
		prefix, found := strings.CutSuffix(path, g)
		last := "$1"
		if g == groups[0] {
			last = "$2"
		}
		head, ok := strings.CutSuffix(target, last)
		if !found || !ok || isPattern(prefix) || strings.Contains(head, "$") || g == "(.*)" && prefix != "/" && !strings.HasSuffix(prefix, "/") {
			continue
		}
		replacement := cmp.Or(strings.TrimRight(head, "/"), "/")
		return pathMatch(gatewayv1.PathMatchPathPrefix, cmp.Or(strings.TrimRight(prefix, "/"), "/")),
			&gatewayv1.HTTPPathModifier{Type: gatewayv1.PrefixMatchHTTPPathModifier, ReplacePrefixMatch: &replacement}, true
	}
	return nil, nil, false
}
