package gateway

import (
	"regexp"
	"strconv"

	"github.com/fairway-net/fairway/internal/api"
)

// A Canary is the part of a canary Ingress that says which requests it gets: first by header, then by cookie, then by
// weight. Without Value and Pattern, the values of the header are always and never.
type Canary struct {
	Header, Value, Pattern string
	Cookie                 string
	Weight, Total          uint32 // Weight is at most Total
}

// readCanary reads the annotations of a canary.
func (r *annotationReading) readCanary() {
	on := false
	if a := r.at("canary"); a.value != "" {
		a.readBool(&on)
	}
	if !on {
		return
	}
	count := func(key string, fallback uint32) uint32 {
		a := r.at(key)
		if a.value == "" {
			return fallback
		}
		n, err := strconv.ParseUint(a.value, 10, 31)
		if err != nil {
			a.invalid("write a number")
			return fallback
		}
		return uint32(n)
	}
	c := &Canary{
		Header: r.get("canary-by-header"), Value: r.get("canary-by-header-value"), Pattern: r.get("canary-by-header-pattern"),
		Cookie: r.get("canary-by-cookie"), Total: max(1, count("canary-weight-total", 100)),
	}
	c.Weight = min(count("canary-weight", 0), c.Total)
	r.Canary = c
}

// canaryList is the list of the canaries of a namespace for a host.
func canaryList(namespace, host string) Ref {
	return Ref{canariesOf, api.Name{Namespace: namespace, Name: host}}
}

// A canaryPath is a canary's backend for one path.
type canaryPath struct {
	*Canary
	backend IngressBackend
}

// canariesOf returns the canaries of a host by path. The oldest canary of a path counts.
func (b *ingressBuild) canariesOf(host string) map[string]canaryPath {
	paths, done := b.tests[host]
	if done {
		return paths
	}
	paths = map[string]canaryPath{}
	b.tests[host] = paths
	all := list[*Ingress](b.c, b.unit.ref, canaryList(b.o.Namespace, host))
	for _, o := range all[:min(len(all), maxCanaries)] {
		if b.c.classOf(o) == nil {
			continue
		}
		c := ReadAnnotations(o).Canary
		for _, r := range o.boundedRules() {
			if lower(r.Host) != host {
				continue
			}
			for _, p := range r.Paths {
				if _, taken := paths[p.Path]; !taken {
					paths[p.Path] = canaryPath{c, p.Backend}
				}
			}
		}
	}
	return paths
}

// canaries applies the canary for a path: it divides the rule of the entry by weight, and returns entries for the header and
// the cookie.
func (b *ingressBuild) canaries(host string, path IngressPath, main *entry) []*entry {
	c, ok := b.canariesOf(host)[path.Path]
	if !ok {
		return nil
	}
	return b.applyCanary(c.Canary, c.backend, main)
}

func (b *ingressBuild) applyCanary(c *Canary, backend IngressBackend, main *entry) (all []*entry) {
	if b.options.Closed != "" {
		return nil
	}
	stable := main.rule.Backends
	test := b.backend(backend)
	// variant returns an entry for a header that leads to one of the two.
	variant := func(header valueMatch, rank int, backends []Backend) {
		rule := *main.rule
		rule.Index, rule.Backends = b.rules, backends
		b.rules++
		e := *main
		e.headers = append([]valueMatch{header}, main.headers...)
		e.rule = &rule
		e.of(&rule, &b.o.Meta, rule.Index)
		e.rank.headers = rank
		all = append(all, &e)
	}
	name := canonicalName(c.Header)
	switch {
	case c.Header == "":
	case c.Value != "":
		variant(valueMatch{name: name, value: c.Value}, 3, []Backend{test})
	case c.Pattern != "":
		if re, err := compilePattern(c.Pattern, "", ""); err != nil {
			b.problem("AnnotationInvalid", "canary-by-header-pattern: %v", err)
		} else {
			variant(valueMatch{name: name, regex: re}, 3, []Backend{test})
		}
	default:
		variant(valueMatch{name: name, value: "always"}, 3, []Backend{test})
		variant(valueMatch{name: name, value: "never"}, 3, stable)
	}
	if c.Cookie != "" {
		variant(cookieMatch(c.Cookie, "always"), 2, []Backend{test})
		variant(cookieMatch(c.Cookie, "never"), 2, stable)
	}
	if c.Weight > 0 {
		main.rule.Backends = nil
		for _, s := range stable {
			s.Weight = c.Total - c.Weight
			main.rule.Backends = append(main.rule.Backends, s)
		}
		test.Weight = c.Weight
		main.rule.Backends = append(main.rule.Backends, test)
	}
	return all
}

// cookieMatch compares one cookie of the header Cookie.
func cookieMatch(name, value string) valueMatch {
	re := regexp.MustCompile(`(?:^|[;,]\s*)` + regexp.QuoteMeta(name) + "=" + value + `(?:\s*[;,]|$)`)
	return valueMatch{name: "Cookie", regex: re}
}
