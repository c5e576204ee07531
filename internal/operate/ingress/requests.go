package ingress

import (
	"cmp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// A Request is a request that Compare sends to both controllers.
type Request struct {
	TLS  bool   `json:"tls"`
	Host string `json:"host"`
	Path string `json:"path"`
}

// String returns the request as its address.
func (r Request) String() string {
	if r.TLS {
		return "https://" + r.Host + r.Path
	}
	return "http://" + r.Host + r.Path
}

// noPath is a path that no Ingress is likely to have.
const noPath = "/fairway-check-of-a-path-that-is-not-there"

// Requests returns the requests that tell two controllers apart: for each host and path, the path itself and the paths
// at its boundaries. Hosts with TLS are asked by both schemes.
func Requests(all []networkingv1.Ingress) []Request {
	seen := map[Request]bool{}
	add := func(g *networkingv1.Ingress, host, path string) {
		r := Request{Host: strings.Replace(cmp.Or(host, "fairway-check.invalid"), "*", "fairway-check", 1), Path: path}
		seen[r] = true
		if hasTLS(g, host) || g.Annotations[prefix+"ssl-passthrough"] == "true" {
			r.TLS = true
			seen[r] = true
		}
	}
	for i := range all {
		g := &all[i]
		for _, s := range sites(g) {
			add(g, s.host, "/")
			add(g, s.host, noPath)
			for _, p := range s.paths {
				for _, path := range boundaries(cmp.Or(p.Path, "/")) {
					add(g, s.host, path)
				}
			}
		}
	}
	var list []Request
	for r := range seen {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Request) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.Path, b.Path), strings.Compare(a.String(), b.String()))
	})
	return list
}

// boundaries returns the paths at which Exact, Prefix and regular expressions differ.
func boundaries(path string) []string {
	if isPattern(path) { // its beginning without the pattern
		path = path[:strings.IndexAny(path, `()[]{}*+?|^$\`)]
		path = "/" + strings.Trim(path, "/")
	}
	trimmed := strings.TrimRight(path, "/")
	all := []string{path, trimmed + "/", trimmed + "/x", trimmed + "/x/y?q=1"}
	if trimmed != "" {
		all = append(all, trimmed, trimmed+"x", strings.ToUpper(trimmed), "/"+trimmed, trimmed+"/../x", trimmed+"%2fx")
	}
	return all
}
