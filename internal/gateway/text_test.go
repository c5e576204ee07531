package gateway_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
)

// A text is a cluster written down: one object a line, its parts on indented lines.
type text struct {
	t       testing.TB
	objects []gateway.Object
	binds   map[string]uint16 // by "namespace/gateway:port" or "namespace/gateway:port/UDP"
	sets    []*gateway.ListenerSet
}

// parse reads objects.
func parse(t testing.TB, src string) *text {
	t.Helper()
	x := &text{t: t, binds: map[string]uint16{}}
	for i, line := range strings.Split(src, "\n") {
		line, _, _ = strings.Cut(line, " # ")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		w := words{t, fmt.Sprintf("line %d: %s", i+1, line), strings.Fields(line), strings.TrimSpace(line)}
		if line[0] == '\t' || line[0] == ' ' {
			x.part(w)
		} else {
			x.object(w)
		}
	}
	x.bind()
	return x
}

type words struct {
	t    testing.TB
	at   string
	all  []string
	line string
}

func (w words) get(key string) string {
	for _, word := range w.all {
		if k, v, ok := strings.Cut(word, "="); ok && k == key {
			return v
		}
	}
	return ""
}

func (w words) has(word string) bool {
	for _, o := range w.all {
		if o == word {
			return true
		}
	}
	return false
}

func (w words) list(key string) []string {
	if v := w.get(key); v != "" {
		return strings.Split(v, ",")
	}
	return nil
}

func (w words) rest(after string) string {
	return strings.TrimSpace(strings.TrimPrefix(w.line, after))
}

func name(s string) api.Name {
	ns, n, ok := strings.Cut(s, "/")
	if !ok {
		return api.Name{Name: s}
	}
	return api.Name{Namespace: ns, Name: n}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(fmt.Sprintf("%q is no number", s))
	}
	return n
}

func (w words) meta() gateway.Meta {
	m := gateway.Meta{Name: name(w.all[1]), Generation: 1, Labels: map[string]string{}}
	if c := w.get("created"); c != "" {
		m.Created = int64(number(c))
	}
	for _, word := range w.all[2:] {
		if k, v, ok := strings.Cut(word, "="); ok {
			m.Labels[k] = v
		}
	}
	return m
}

func (x *text) object(w words) {
	m := w.meta()
	var o gateway.Object
	switch w.all[0] {
	case "class":
		o = &gateway.Class{Meta: m, Controller: cmp.Or(w.get("controller"), "fairway.net/gateway"), Parameters: w.has("parameters")}
	case "namespace":
		o = &gateway.Namespace{Meta: m}
	case "service":
		o = service(m, w)
	case "secret":
		o = secret(m, w)
	case "configmap":
		o = configMap(m, w)
	case "grant":
		o = grant(m, w)
	case "gateway":
		g := &gateway.Gateway{Meta: m, Class: cmp.Or(w.get("class"), "fairway"), InfrastructureParameters: w.has("parameters")}
		if a := w.get("address"); a != "" {
			g.OtherAddresses = []string{a}
		}
		o = g
	case "listenerset":
		s := &gateway.ListenerSet{Meta: m, Parent: parentRef(w.get("parent"))}
		x.sets = append(x.sets, s)
		o = s
	case "httproute":
		o = &gateway.HTTPRoute{RouteCommon: common(m, w)}
	case "grpcroute":
		o = &gateway.GRPCRoute{RouteCommon: common(m, w)}
	case "tlsroute", "tcproute", "udproute":
		kind := map[string]gateway.Kind{"tlsroute": gateway.KindTLSRoute, "tcproute": gateway.KindTCPRoute, "udproute": gateway.KindUDPRoute}[w.all[0]]
		o = &gateway.L4Route{RouteCommon: common(m, w), Kind: kind}
	case "ingressclass":
		o = &gateway.IngressClass{Meta: m, Controller: cmp.Or(w.get("controller"), "fairway.net/ingress"), Default: w.has("default")}
	case "ingress":
		o = &gateway.Ingress{Meta: m, Class: w.get("class"), Annotations: map[string]string{}}
	case "tlspolicy":
		o = tlsPolicy(m, w)
	case "routepolicy":
		o = routePolicy(m, w)
	default:
		w.t.Fatalf("%s: unknown object", w.at)
	}
	x.objects = append(x.objects, o)
}

// part adds a part to the last object.
func (x *text) part(w words) {
	switch o := x.objects[len(x.objects)-1].(type) {
	case *gateway.Gateway:
		gatewayPart(o, w)
	case *gateway.ListenerSet:
		o.Listeners = append(o.Listeners, listenerSpec(w))
	case *gateway.HTTPRoute:
		if w.all[0] != "rule" {
			rule := &o.Rules[len(o.Rules)-1]
			if w.all[0] == "timeouts" {
				rule.Timeout, rule.BackendTimeout = duration(w.get("request")), duration(w.get("backend"))
				return
			}
			rule.Filters = append(rule.Filters, filter(w))
			return
		}
		o.Rules = append(o.Rules, httpRule(w))
	case *gateway.GRPCRoute:
		if w.all[0] != "rule" {
			rule := &o.Rules[len(o.Rules)-1]
			rule.Filters = append(rule.Filters, filter(w))
			return
		}
		o.Rules = append(o.Rules, grpcRule(w))
	case *gateway.L4Route:
		o.Rules = append(o.Rules, gateway.L4Rule{Backends: backends(w.get("to"))})
	case *gateway.Ingress:
		ingressPart(o, w)
	case *gateway.Secret:
		o.Data[w.all[0]] = []byte(strings.ReplaceAll(w.rest(w.all[0]), `\n`, "\n"))
	case *gateway.ConfigMap:
		o.Data[w.all[0]] = w.rest(w.all[0])
	default:
		w.t.Fatalf("%s: this object has no parts", w.at)
	}
}

func gatewayPart(o *gateway.Gateway, w words) {
	switch w.all[0] {
	case "listen":
		o.Listeners = append(o.Listeners, listenerSpec(w))
	case "sets":
		o.AllowedListeners = namespaces(w.get("from"))
	case "backend-cert":
		o.BackendCertificate = gateway.ObjectRef{GroupKind: gateway.GroupKind{Kind: "Secret"}, Namespace: name(w.all[1]).Namespace, Name: name(w.all[1]).Name}
	case "frontend":
		v := &gateway.Validation{}
		if w.has("fallback") {
			v.Mode = "AllowInsecureFallback"
		}
		for _, ca := range w.list("ca") {
			kind, n, ok := strings.Cut(ca, ":")
			if !ok {
				kind, n = "ConfigMap", ca
			}
			v.CAs = append(v.CAs, gateway.ObjectRef{GroupKind: gateway.GroupKind{Kind: kind}, Namespace: name(n).Namespace, Name: name(n).Name})
		}
		if port := w.get("port"); port != "" {
			if o.FrontendPerPort == nil {
				o.FrontendPerPort = map[uint16]*gateway.Validation{}
			}
			o.FrontendPerPort[uint16(number(port))] = v
			return
		}
		o.Frontend = v
	default:
		w.t.Fatalf("%s: unknown part", w.at)
	}
}

// bind gives each port of each Gateway a port of the process.
func (x *text) bind() {
	next := uint16(20000)
	for _, o := range x.objects {
		g, ok := o.(*gateway.Gateway)
		if !ok {
			continue
		}
		g.Bind = map[gateway.BindKey]uint16{}
		listeners := g.Listeners
		for _, s := range x.sets {
			if s.Parent.Name == g.Name.Name {
				listeners = append(listeners[:len(listeners):len(listeners)], s.Listeners...)
			}
		}
		for _, l := range listeners {
			key := gateway.BindKey{Proto: api.TCP, Port: l.Port}
			label := fmt.Sprintf("%s:%d", g.Name, l.Port)
			if l.Protocol == "UDP" {
				key.Proto, label = api.UDP, label+"/UDP"
			}
			if g.Labels["unbound"] == "" && g.Bind[key] == 0 {
				g.Bind[key], x.binds[label] = next, next
				next++
			}
		}
	}
}

func (x *text) port(label string) uint16 {
	switch label {
	case "http":
		return 8080
	case "https":
		return 8443
	}
	return x.binds[label]
}

func listenerSpec(w words) gateway.ListenerSpec {
	l := gateway.ListenerSpec{Name: w.all[1], Port: uint16(number(w.all[2])), Protocol: w.all[3]}
	if len(w.all) > 4 && !strings.Contains(w.all[4], "=") && w.all[4] != "passthrough" {
		l.Hostname = w.all[4]
	}
	if from, kinds := w.get("from"), w.list("kinds"); from != "" || kinds != nil {
		l.Allowed = &gateway.AllowedRoutes{Namespaces: namespaces(w.get("from"))}
		for _, k := range kinds {
			l.Allowed.Kinds = append(l.Allowed.Kinds, gateway.GroupKind{Group: gateway.Group, Kind: k})
		}
	}
	if certs := w.list("cert"); certs != nil || w.has("passthrough") {
		l.TLS = &gateway.ListenerTLS{}
		if w.has("passthrough") {
			l.TLS.Mode = "Passthrough"
		}
		for _, c := range certs {
			kind, n, ok := strings.Cut(c, ":")
			if !ok {
				kind, n = "Secret", c
			}
			l.TLS.Certificates = append(l.TLS.Certificates, gateway.ObjectRef{GroupKind: gateway.GroupKind{Kind: kind}, Namespace: name(n).Namespace, Name: name(n).Name})
		}
	}
	return l
}

func namespaces(from string) gateway.Namespaces {
	if k, v, ok := strings.Cut(from, ":"); ok {
		return gateway.Namespaces{From: "Selector", Selector: api.NewSelector(api.Requirement{Key: k, Op: api.In, Values: []string{v}})}
	}
	return gateway.Namespaces{From: from}
}

// parentRef reads "namespace/name/section:port", and "set:namespace/name" for a ListenerSet.
func parentRef(s string) gateway.ObjectRef {
	r := gateway.ObjectRef{GroupKind: gateway.GroupKind{Group: gateway.Group, Kind: "Gateway"}}
	if rest, ok := strings.CutPrefix(s, "set:"); ok {
		r.Kind, s = "ListenerSet", rest
	}
	s, port, ok := strings.Cut(s, ":")
	if ok {
		r.Port = uint16(number(port))
	}
	parts := strings.Split(s, "/")
	r.Namespace, r.Name = parts[0], parts[1]
	if len(parts) > 2 {
		r.Section = parts[2]
	}
	return r
}

func common(m gateway.Meta, w words) gateway.RouteCommon {
	c := gateway.RouteCommon{Meta: m, Hostnames: w.list("hosts")}
	for _, p := range w.list("parents") {
		c.Parents = append(c.Parents, parentRef(p))
	}
	return c
}

// backends reads "namespace/name:port*weight,…" or "Kind:name…".
func backends(s string) (all []gateway.BackendRef) {
	for _, part := range strings.Split(s, ",") {
		if part == "" {
			continue
		}
		b := gateway.BackendRef{Weight: 1}
		b.Kind = "Service"
		if rest, ok := strings.CutPrefix(part, "Other:"); ok {
			b.Group, b.Kind, part = "example.com", "Other", rest
		}
		part, weight, ok := strings.Cut(part, "*")
		if ok {
			b.Weight = uint32(number(weight))
		}
		part, port, _ := strings.Cut(part, ":")
		b.Port = uint16(number(cmp.Or(port, "8080")))
		b.Namespace, b.Name = name(part).Namespace, name(part).Name
		all = append(all, b)
	}
	return all
}

func httpRule(w words) gateway.HTTPRule {
	r := gateway.HTTPRule{Backends: backends(w.get("to")), Name: w.get("name")}
	var m gateway.HTTPMatch
	used := false
	for _, word := range w.all[1:] {
		k, v, _ := strings.Cut(word, "=")
		switch k {
		case "or":
			r.Matches, m = append(r.Matches, m), gateway.HTTPMatch{}
			continue
		case "path":
			m.Path = gateway.StringMatch{Type: "PathPrefix", Value: v}
		case "exact":
			m.Path = gateway.StringMatch{Type: "Exact", Value: v}
		case "regex":
			m.Path = gateway.StringMatch{Type: "RegularExpression", Value: v}
		case "method":
			m.Method = v
		case "header", "header~":
			m.Headers = append(m.Headers, namedMatch(k, v))
		case "query", "query~":
			m.Query = append(m.Query, namedMatch(k, v))
		default:
			continue
		}
		used = true
	}
	if used {
		r.Matches = append(r.Matches, m)
	}
	return r
}

func namedMatch(key, s string) gateway.NamedMatch {
	n, v, _ := strings.Cut(s, ":")
	m := gateway.NamedMatch{Name: n, StringMatch: gateway.StringMatch{Value: v}}
	if strings.HasSuffix(key, "~") {
		m.Type = "RegularExpression"
	}
	return m
}

func grpcRule(w words) gateway.GRPCRule {
	r := gateway.GRPCRule{Backends: backends(w.get("to")), Name: w.get("name")}
	m := gateway.GRPCMatch{Service: w.get("service"), Method: w.get("method"), Type: w.get("type")}
	if h := w.get("header"); h != "" {
		m.Headers = append(m.Headers, namedMatch("header", h))
	}
	if m.Service != "" || m.Method != "" || len(m.Headers) > 0 {
		r.Matches = append(r.Matches, m)
	}
	return r
}

// filter reads "filter {JSON of FilterSpec}".
func filter(w words) (f gateway.FilterSpec) {
	if err := json.Unmarshal([]byte(w.rest("filter")), &f); err != nil {
		w.t.Fatalf("%s: %v", w.at, err)
	}
	return f
}

func duration(s string) time.Duration {
	d, _ := time.ParseDuration(s)
	return d
}

func ingressPart(o *gateway.Ingress, w words) {
	switch w.all[0] {
	case "annotation":
		key := w.all[1]
		if !strings.Contains(key, "/") {
			key = "nginx.ingress.kubernetes.io/" + key
		}
		value := strings.TrimPrefix(w.rest("annotation"), w.all[1])
		o.Annotations[key] = strings.ReplaceAll(strings.TrimSpace(value), `\n`, "\n")
	case "tls":
		o.TLS = append(o.TLS, gateway.IngressTLS{Secret: w.all[1], Hosts: w.all[2:]})
	case "host":
		host := ""
		if len(w.all) > 1 {
			host = w.all[1]
		}
		o.Rules = append(o.Rules, gateway.IngressRule{Host: host})
	case "path":
		r := &o.Rules[len(o.Rules)-1]
		r.Paths = append(r.Paths, gateway.IngressPath{Type: w.all[1], Path: w.all[2], Backend: ingressBackend(w.all[3])})
	case "default":
		b := ingressBackend(w.all[1])
		o.Default = &b
	default:
		w.t.Fatalf("%s: unknown part", w.at)
	}
}

func ingressBackend(s string) gateway.IngressBackend {
	svc, port, _ := strings.Cut(s, ":")
	b := gateway.IngressBackend{Service: svc}
	if n, err := strconv.Atoi(port); err == nil {
		b.Port = uint16(n)
	} else {
		b.PortName = port
	}
	return b
}
