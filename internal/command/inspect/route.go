package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command/agent"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
	kubegateway "github.com/fairway-net/fairway/internal/kube/gateway"
	"github.com/fairway-net/fairway/internal/text"
)

// routeKinds are the kinds of subjects for which `fairway explain` asks the gateways' compiler.
var routeKinds = map[string]gateway.Kind{
	"gateway": gateway.KindGateway, "ingress": gateway.KindIngress, "httproute": gateway.KindHTTPRoute, "grpcroute": gateway.KindGRPCRoute,
}

// A routeQuestion is a subject as KIND/NAMESPACE/NAME, and a request for it.
type routeQuestion struct {
	subject gateway.Ref
	request *gateway.Ask // nil: none
}

// parseRouteQuestion reads a subject that is a gateway's. ok is false if it is a Service.
func parseRouteQuestion(subject, request string, headers []string) (q routeQuestion, ok bool, err error) {
	kind, rest, two := strings.Cut(subject, "/")
	if two && strings.Contains(rest, "/") {
		known := routeKinds[strings.ToLower(kind)]
		if known == "" {
			return q, true, fmt.Errorf("%q is no kind that is explained [write gateway/, httproute/, grpcroute/ or ingress/NAMESPACE/NAME, or NAMESPACE/SERVICE]", kind)
		}
		name, err := api.ParseName(rest)
		if err != nil {
			return q, true, err
		}
		q.subject, ok = gateway.Ref{Kind: known, Name: name}, true
	}
	switch {
	case !ok && (request != "" || len(headers) > 0):
		return q, false, fmt.Errorf("--request and --header are for gateways and routes [write gateway/NAMESPACE/NAME; fairway path is for Services]")
	case request != "":
		q.request, err = gateway.ParseAsk(request, headers)
	case len(headers) > 0:
		err = fmt.Errorf("--header needs --request")
	}
	return q, ok, err
}

// explainRoute reads the API server and answers the question.
func explainRoute(ctx context.Context, a *agent.Tool, q routeQuestion) (*routed, error) {
	client, custom, err := kube.ConnectBoth(a.Connection())
	if err != nil {
		return nil, err
	}
	s, err := kubegateway.Once(ctx, kube.Config{Log: a.Log, Client: client, Custom: custom}, "kube-system")
	if err != nil {
		return nil, err
	}
	return answerRoute(s, q)
}

// routed is what `fairway explain` says about an object of gateways.
type routed struct {
	Object  string   `json:"object"`
	State   []string `json:"state"` // in words: attached or refused, and why
	Assumed []string `json:"assumed,omitempty"`
	Request string   `json:"request,omitempty"`
	// Ways has the request's way at each gateway that the object belongs to.
	Ways []way `json:"ways,omitempty"`
}

// A way is a request's way at one gateway.
type way struct {
	Gateway  string    `json:"gateway"`
	Answer   string    `json:"answer"` // in short: forwarded, redirect, or a status
	Why      string    `json:"why"`
	Rule     string    `json:"rule,omitempty"`
	Match    string    `json:"match,omitempty"`
	Filters  []string  `json:"filters,omitempty"`
	Backends []backend `json:"backends,omitempty"`
	Others   []other   `json:"others,omitempty"` // rules that do not get the request
}

// A backend is a backend of a rule.
type backend struct {
	Service   string `json:"service"`
	Port      uint16 `json:"port"`
	Percent   int    `json:"percent"`
	Protocol  string `json:"protocol,omitempty"`
	Endpoints int    `json:"endpoints"`
	Refused   string `json:"refused,omitempty"`
}

// An other is a rule that does not get the request.
type other struct {
	Rule  string `json:"rule"`
	Match string `json:"match"`
	Lost  string `json:"lost"`
}

// answerRoute answers a question from a cluster's objects.
func answerRoute(s *kubegateway.Snapshot, q routeQuestion) (*routed, error) {
	if s.Objects[q.subject] == nil {
		return nil, fmt.Errorf("there is no %s %s [kubectl get %s -A lists them]", q.subject.Kind, q.subject.Name, strings.ToLower(string(q.subject.Kind)))
	}
	s.Table() // the reports are of the objects of now
	r := &routed{Object: refText(q.subject), State: s.ExplainObject(q.subject)}
	for _, name := range s.Assumed {
		r.Assumed = append(r.Assumed, name.String())
	}
	if q.request == nil {
		return r, nil
	}
	r.Request = q.request.Verb + " " + q.request.URL.String()
	for _, at := range doors(s, q.subject) {
		r.Ways = append(r.Ways, at.ask(s, q))
	}
	return r, nil
}

// A door is where requests for an object come in: a Gateway, or the Ingresses' ports.
type door struct{ gateway api.Name }

// doors returns the Gateways of an object.
func doors(s *kubegateway.Snapshot, subject gateway.Ref) (all []door) {
	switch subject.Kind {
	case gateway.KindIngress:
		return []door{{}}
	case gateway.KindGateway:
		return []door{{subject.Name}}
	}
	for _, name := range s.GatewaysOf(subject) {
		all = append(all, door{name})
	}
	return all
}

// ask returns the way of a request.
func (d door) ask(s *kubegateway.Snapshot, q routeQuestion) way {
	w := way{Gateway: "the Ingresses"}
	port := map[uint16]uint16{80: gateway.IngressHTTP, 443: gateway.IngressHTTPS}[q.request.Port()]
	if d.gateway != (api.Name{}) {
		w.Gateway = "Gateway " + d.gateway.String()
		port = s.Bind(d.gateway, q.request.Port())
	}
	if port == 0 {
		w.Answer, w.Why = "no connection", fmt.Sprintf("%s has no port %d that is served", w.Gateway, q.request.Port())
		w.add(s.WhyUnserved(gateway.Ref{Kind: gateway.KindGateway, Name: d.gateway}, q.request.Port(), q.request.Host()))
		return w
	}
	table := s.Table()
	if q.request.TLS() {
		h, ok := table.Handshake(port, q.request.Name)
		switch {
		case !ok || h.Passthrough == nil && h.Forward == nil && len(h.Certificates) == 0:
			w.Answer, w.Why = "no TLS connection", fmt.Sprintf("no listener at port %d is for %s, with a certificate", q.request.Port(), q.request.Name)
			w.add(s.WhyUnserved(gateway.Ref{Kind: gateway.KindGateway, Name: d.gateway}, q.request.Port(), q.request.Name))
			return w
		case h.Passthrough != nil:
			w.Answer, w.Why = "passed on as it is", "the TLS connection ends at the backend"
			w.Backends = backends(s, h.Passthrough)
			return w
		case h.Forward != nil:
			w.Answer, w.Why = "decrypted and passed on", "the listener is for a TLSRoute of mode Terminate"
			w.Backends = backends(s, h.Forward)
			return w
		}
	}
	w.fill(s, table.Explain(port, q.request), q.request)
	return w
}

// add adds reasons why listeners do not serve the request.
func (w *way) add(why []string) {
	if len(why) > 0 {
		w.Why += ": " + strings.Join(why[:min(len(why), shownOthers)], "; ")
	}
}

// fill writes an Explanation into the way.
func (w *way) fill(s *kubegateway.Snapshot, x gateway.Explanation, r *gateway.Ask) {
	w.Why = x.Why
	for _, c := range x.Candidates {
		if c.Lost == "" {
			w.Match = c.Match + ", host " + c.Host
		} else {
			w.Others = append(w.Others, other{ruleText(c.Rule), c.Match + ", host " + c.Host, c.Lost})
		}
	}
	switch x.Outcome {
	case gateway.NoListener, gateway.NoRoute:
		w.Answer = "404"
		return
	case gateway.Misdirected:
		w.Answer = "421"
		return
	}
	w.Rule, w.Filters, w.Backends = ruleText(x.Rule), x.Rule.Words(), backends(s, x.Rule.Backends)
	redirect := x.Rule.Filters.Redirect
	switch {
	case redirect != nil && !(redirect.OnlyHTTP && r.TLS()):
		w.Answer, w.Backends = fmt.Sprintf("redirect (%d)", cmp.Or(redirect.Code, 302)), nil
	case !slices.ContainsFunc(w.Backends, func(b backend) bool { return b.Refused == "" }):
		w.Answer = "500, no backend may be used"
	case !slices.ContainsFunc(w.Backends, func(b backend) bool { return b.Endpoints > 0 }):
		w.Answer = "503, no backend has a ready endpoint"
	default:
		w.Answer = "forwarded"
	}
}

// backends counts the endpoints of backends, and writes weights as shares.
func backends(s *kubegateway.Snapshot, all []gateway.Backend) (out []backend) {
	total := uint32(0)
	for _, b := range all {
		total += b.Weight
	}
	for _, b := range all {
		one := backend{Service: b.Service.Name.String(), Port: b.Port, Endpoints: len(s.Services[b.Service]), Refused: b.Refused}
		if total > 0 {
			one.Percent = int(uint64(b.Weight) * 100 / uint64(total))
		}
		var how []string
		if b.Protocol == gateway.H2C {
			how = append(how, "HTTP/2")
		}
		if b.TLS != nil {
			how = append(how, "TLS")
		}
		one.Protocol = strings.Join(how, " over ")
		out = append(out, one)
	}
	return out
}

func refText(ref gateway.Ref) string { return string(ref.Kind) + " " + ref.Name.String() }

func ruleText(r *gateway.Rule) string {
	text := fmt.Sprintf("%s, rule %d", refText(r.Route), r.Index+1)
	if r.Name != "" {
		text += " (" + r.Name + ")"
	}
	return text
}

// WriteTable implements output.Value.
func (r *routed) WriteTable(w io.Writer, wide bool) error {
	p := &printer{w: w}
	switch {
	case r.Request == "":
		p.line("%s", r.Object)
		p.state(r.State)
	case len(r.Ways) == 0:
		p.line("%s is attached to no listener:", r.Object)
		p.state(r.State)
	default:
		p.line("%s", text.Indented(r.Request, ""))
		for _, x := range r.Ways {
			p.line("%s", text.Indented("at "+x.Gateway+": "+x.Answer, "  "))
			x.write(p, wide)
		}
	}
	if len(r.Assumed) > 0 {
		p.line("\n%s", text.Indented("You may not read these Secrets, so they count as good: "+strings.Join(r.Assumed, ", "), ""))
	}
	return p.err
}

// shownOthers is the number of other rules in a table that is not wide.
const shownOthers = 10

func (w *way) write(p *printer, wide bool) {
	p.field("why", w.Why)
	if w.Rule != "" {
		p.field("rule", w.Rule+": "+w.Match)
	}
	for i, f := range w.Filters {
		p.field(first(i, "then"), f)
	}
	for i, b := range w.Backends {
		line := fmt.Sprintf("%s:%d gets %d%%, %s", b.Service, b.Port, b.Percent, text.Count(b.Endpoints, "endpoint"))
		if b.Protocol != "" {
			line += ", by " + b.Protocol
		}
		if b.Refused != "" {
			line = fmt.Sprintf("%d%% get 500: %s", b.Percent, b.Refused)
		}
		p.field(first(i, "backend"), line)
	}
	others := w.Others
	if !wide {
		others = others[:min(len(others), shownOthers)]
	}
	for i, o := range others {
		p.field(first(i, "not"), fmt.Sprintf("%s (%s): %s", o.Rule, o.Match, o.Lost))
	}
	if n := len(w.Others) - len(others); n > 0 {
		p.field("", fmt.Sprintf("and %d more rules [-o wide]", n))
	}
}

func first(i int, name string) string {
	if i > 0 {
		return ""
	}
	return name
}

// A printer writes lines that fit a terminal.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if _, err := fmt.Fprintf(p.w, format+"\n", args...); p.err == nil {
		p.err = err
	}
}

func (p *printer) state(lines []string) {
	for _, line := range lines {
		p.line("%s", text.Indented(line, "  "))
	}
}

// field writes a name and a text. Further lines of the text are below the first one.
func (p *printer) field(name, value string) {
	const column = 13
	for i, line := range text.Wrap(value, text.Width-column-2) {
		indent := ""
		if i > 0 {
			indent, name = "  ", ""
		}
		p.line("    %-*s%s%s", column-4, name, indent, line)
	}
}
