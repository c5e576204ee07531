package gateway

import (
	"crypto/tls"
	"fmt"
	"net/textproto"
	"regexp"
	"slices"
	"strings"
)

// buildHTTP compiles an HTTPRoute.
func (c *Compiler) buildHTTP(o *HTTPRoute, unit *routeUnit) {
	var f faults
	var all []*entry
	for i := range o.Rules {
		spec := &o.Rules[i]
		rule := &Rule{
			Route: unit.ref, Name: spec.Name, Index: i,
			Timeout: spec.Timeout, BackendTimeout: spec.BackendTimeout, Retry: spec.Retry, Session: spec.Session,
		}
		c.fillRule(rule, spec.Filters, spec.Backends, &f)
		if spec.BadTimeouts {
			rule.refuse(f.invalidate("rule %d: a timeout cannot be read", i))
		}
		all = append(all, ruleEntries(rule, &o.Meta, spec.Matches, httpEntry, &f)...)
	}
	c.applyPolicies(unit, all, &f)
	c.attachEntries(unit, &o.RouteCommon, all, &f)
}

// buildGRPC compiles a GRPCRoute.
func (c *Compiler) buildGRPC(o *GRPCRoute, unit *routeUnit) {
	var f faults
	var all []*entry
	for i := range o.Rules {
		spec := &o.Rules[i]
		rule := &Rule{Route: unit.ref, Name: spec.Name, Index: i, GRPC: true, Session: spec.Session}
		c.fillRule(rule, spec.Filters, spec.Backends, &f)
		all = append(all, ruleEntries(rule, &o.Meta, spec.Matches, grpcEntry, &f)...)
	}
	c.applyPolicies(unit, all, &f)
	c.attachEntries(unit, &o.RouteCommon, all, &f)
}

// ruleEntries compiles the conditions of a rule. Without a condition it gets all requests.
func ruleEntries[M any](rule *Rule, m *Meta, matches []M, compile func(*M) (*entry, error), f *faults) (all []*entry) {
	if len(matches) == 0 {
		matches = make([]M, 1)
	}
	for j := range matches {
		e, err := compile(&matches[j])
		if err != nil {
			f.invalidate("rule %d: %v", rule.Index, err)
			continue
		}
		all = append(all, e.of(rule, m, j))
	}
	return all
}

// attachEntries attaches a route with entries. Gateways with a certificate for backends get rules of their own.
func (c *Compiler) attachEntries(unit *routeUnit, o *RouteCommon, all []*entry, f *faults) {
	if f.incompatible != "" {
		all = nil
	}
	c.attach(unit, o, f, func(cert *tls.Certificate) []*entry {
		if cert == nil {
			return all
		}
		rules := map[*Rule]*Rule{}
		copies := make([]*entry, len(all))
		for i, e := range all {
			if rules[e.rule] == nil {
				rules[e.rule] = withCertificate(e.rule, cert)
			}
			copied := *e
			copied.rule = rules[e.rule]
			copies[i] = &copied
		}
		return copies
	})
}

// refuse makes a rule answer all its requests with 500. A rule that is only half understood could let in a request that
// its author wanted to keep out.
func (r *Rule) refuse(text string) {
	r.Filters = Filters{}
	r.Backends = []Backend{{Weight: 1, Refused: text}}
}

// fillRule compiles the filters and backends of a rule.
func (c *Compiler) fillRule(rule *Rule, filters []FilterSpec, backends []BackendRef, f *faults) {
	var text string
	if rule.Filters, text = c.filters(rule.Route, filters, f); text != "" {
		rule.refuse(text)
		return
	}
	for _, spec := range filters {
		if spec.Type != "ExtensionRef" || spec.Extension == nil {
			continue
		}
		if text := c.extension(rule, *spec.Extension, f); text != "" {
			rule.refuse(text)
			return
		}
	}
	for _, spec := range backends {
		b := c.backend(rule.Route, spec.ObjectRef, spec.Weight, f)
		if slices.ContainsFunc(spec.Filters, func(s FilterSpec) bool { return s.Type == "ExtensionRef" }) {
			b.Refused = f.invalidate("a backend has a filter of type ExtensionRef [move it to the rule]")
		}
		if b.Filters, text = c.filters(rule.Route, spec.Filters, f); text != "" && b.Refused == "" {
			b.Refused = text
		}
		rule.Backends = append(rule.Backends, b)
	}
}

// filters compiles the filters of a rule or a backend. text says why they cannot be; empty: they can.
func (c *Compiler) filters(route Ref, specs []FilterSpec, f *faults) (all Filters, text string) {
	for _, spec := range specs {
		switch {
		case spec.Type == "RequestHeaderModifier" && spec.RequestHeaders != nil:
			all.RequestHeaders = spec.RequestHeaders.canonical()
		case spec.Type == "ResponseHeaderModifier" && spec.ResponseHeaders != nil:
			all.ResponseHeaders = spec.ResponseHeaders.canonical()
		case spec.Type == "RequestMirror" && spec.Mirror != nil:
			if m, ok := c.mirror(route, spec.Mirror, f); ok {
				all.Mirrors = append(all.Mirrors, m)
			}
		case spec.Type == "RequestRedirect" && spec.Redirect != nil:
			all.Redirect = spec.Redirect
		case spec.Type == "URLRewrite" && spec.Rewrite != nil:
			all.Rewrite = spec.Rewrite
		case spec.Type == "CORS" && spec.CORS != nil:
			all.CORS = spec.CORS
		case spec.Type == "ExtensionRef" && spec.Extension != nil: // see fillRule
		default:
			return Filters{}, f.invalidate("filter %s is not supported", spec.Type)
		}
	}
	if all.Redirect != nil && all.Rewrite != nil {
		f.incompatible = "a rule has both filters RequestRedirect and URLRewrite"
	}
	for _, change := range []*HeaderChange{all.RequestHeaders, all.ResponseHeaders} {
		if text := change.fault(); text != "" {
			return Filters{}, f.invalidate("%s", text)
		}
	}
	return all, ""
}

func (c *Compiler) mirror(route Ref, spec *MirrorSpec, f *faults) (Mirror, bool) {
	m := Mirror{Numerator: spec.Numerator, Denominator: spec.Denominator}
	if m.Denominator == 0 {
		m.Numerator, m.Denominator = 1, 1
	}
	m.Backend = c.backend(route, spec.Backend, 1, f)
	return m, m.Backend.Refused == ""
}

// canonical returns a change with canonical names. If a name is there twice, the first line counts.
func (h *HeaderChange) canonical() *HeaderChange {
	lines := func(all []Header) (kept []Header) {
		seen := map[string]bool{}
		for _, l := range all {
			name := textproto.CanonicalMIMEHeaderKey(l.Name)
			if !seen[name] {
				seen[name] = true
				kept = append(kept, Header{name, l.Value})
			}
		}
		return kept
	}
	changed := &HeaderChange{Set: lines(h.Set), Add: lines(h.Add)}
	for _, name := range h.Remove {
		changed.Remove = append(changed.Remove, textproto.CanonicalMIMEHeaderKey(name))
	}
	return changed
}

// fault returns why a change must not be made; empty: it may.
func (h *HeaderChange) fault() string {
	if h == nil {
		return ""
	}
	for _, line := range append(append([]Header{}, h.Set...), h.Add...) {
		if !validHeaderName(line.Name) || strings.ContainsAny(line.Value, "\r\n\x00") {
			return fmt.Sprintf("header %q is not valid", line.Name)
		}
	}
	return ""
}

// validHeaderName reports whether a name is a token.
func validHeaderName(name string) bool {
	for i := range len(name) {
		if !IsToken(name[i]) {
			return false
		}
	}
	return name != ""
}

// IsToken reports whether a byte may be part of a method or of a header's name (RFC 9110, section 5.6.2).
func IsToken(b byte) bool { return tokens[b] }

var tokens = func() (is [256]bool) {
	for b := range is {
		is[b] = b|0x20 >= 'a' && b|0x20 <= 'z' || b >= '0' && b <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", byte(b)) >= 0
	}
	return is
}()

// maxPattern is the length of a regular expression.
const maxPattern = 1024

// compilePattern compiles a user's regular expression. Matching is linear in the text, because regexp is RE2.
func compilePattern(text, prefix, suffix string) (*regexp.Regexp, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("a regular expression has %d characters [the limit is %d]", len(text), maxPattern)
	}
	re, err := regexp.Compile(prefix + "(?:" + text + ")" + suffix)
	if err != nil {
		return nil, fmt.Errorf("regular expression %q cannot be read: %w", text, err)
	}
	return re, nil
}
