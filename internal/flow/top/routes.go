package top

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A RouteSample is what one gateway pod knows at one time, cumulative since its start.
type RouteSample struct {
	Run    int64 // another number after a restart of the pod
	At     time.Time
	Routes map[RouteName]RouteFigures
}

// A RouteName names a route at a Gateway.
type RouteName struct {
	Gateway string // namespace/name; empty for an Ingress
	Kind    string // "HTTPRoute"
	Name    string // namespace/name
}

// RouteFigures are those of one route.
type RouteFigures struct {
	Requests, ClientErrors, ServerErrors uint64
	Bytes                                uint64
	Seconds                              float64 // from a request's head to the end of its answer, of all Timed requests
	Timed                                uint64
}

// objects is what a pod may say of the names of Gateways and routes.
var objects = regexp.MustCompile(`^[a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-.a-z0-9]{0,252}$`)

var kinds = regexp.MustCompile(`^[A-Za-z]{1,40}$`)

// Check refuses a sample that no gateway of ours writes.
func (s *RouteSample) Check() error {
	if len(s.Routes) > maxServices {
		return errors.New("the sample is too long")
	}
	for n := range s.Routes {
		if n.Gateway != "" && !objects.MatchString(n.Gateway) || !kinds.MatchString(n.Kind) || !objects.MatchString(n.Name) {
			return fmt.Errorf("%.200q is not the name of a route", n)
		}
	}
	return nil
}

// A RouteView joins the samples of the gateway's pods. NewRoutes returns one. It belongs to one goroutine.
type RouteView struct {
	pace
	pods map[string]*gatewayPod
}

type gatewayPod struct {
	contact
	last *RouteSample
	rows map[RouteName]routeRates
}

// routeRates are the differences between two samples, and the time between them.
type routeRates struct {
	RouteFigures
	seconds float64
}

// NewRoutes returns a RouteView of these pods. interval is the time between two samples.
func NewRoutes(interval time.Duration, pods []string) *RouteView {
	v := &RouteView{pace: pace(interval), pods: map[string]*gatewayPod{}}
	for _, p := range pods {
		v.pods[p] = &gatewayPod{}
	}
	return v
}

func (v *RouteView) pod(name string) *gatewayPod {
	if v.pods[name] == nil {
		v.pods[name] = &gatewayPod{}
	}
	return v.pods[name]
}

// Fail records that a pod did not answer, and why.
func (v *RouteView) Fail(pod string, at time.Time, why string) { v.pod(pod).fail(at, why) }

// Add takes a sample of a pod.
func (v *RouteView) Add(name string, s *RouteSample) {
	p := v.pod(name)
	if err := s.Check(); err != nil {
		p.fail(s.At, err.Error())
		return
	}
	was := p.last
	if was != nil && (was.Run != s.Run || !s.At.After(was.At)) {
		was = nil
	}
	p.rows = map[RouteName]routeRates{}
	if was != nil {
		for name, f := range s.Routes {
			p.rows[name] = routeRates{f.since(was.Routes[name]), s.At.Sub(was.At).Seconds()}
		}
	}
	p.last = s
	p.answer(s.At, was != nil)
}

// since returns how far the figures have come.
func (f RouteFigures) since(before RouteFigures) RouteFigures {
	return RouteFigures{
		since(before.Requests, f.Requests), since(before.ClientErrors, f.ClientErrors), since(before.ServerErrors, f.ServerErrors),
		since(before.Bytes, f.Bytes), max(0, f.Seconds-before.Seconds), since(before.Timed, f.Timed),
	}
}

// A RouteFrame is what a RouteView shows at one time. Programs read its JSON, so the fields stay.
type RouteFrame struct {
	Time      time.Time  `json:"time"`
	Namespace string     `json:"namespace,omitempty"` // empty: all
	Filter    string     `json:"filter,omitempty"`
	Pods      int        `json:"pods"` // those whose figures count, of Of
	Of        int        `json:"of"`
	Rows      []RouteRow `json:"rows"`
	Notes     []string   `json:"notes"`
}

// A RouteRow has the figures of one route. Milliseconds is nil without a request.
type RouteRow struct {
	Gateway               string   `json:"gateway,omitempty"`
	Kind                  string   `json:"kind"`
	Namespace             string   `json:"namespace"`
	Name                  string   `json:"name"`
	RequestsPerSecond     float64  `json:"requestsPerSecond"`
	ClientErrorsPerSecond float64  `json:"clientErrorsPerSecond"`
	ServerErrorsPerSecond float64  `json:"serverErrorsPerSecond"`
	BytesPerSecond        float64  `json:"bytesPerSecond"`
	Milliseconds          *float64 `json:"milliseconds"`

	seconds float64
	timed   uint64
}

// Label returns the row's name: the route and its Gateway.
func (r *RouteRow) Label() string { return r.route() + " " + r.Gateway }

// route returns "HTTPRoute/namespace/name".
func (r *RouteRow) route() string { return r.Kind + "/" + r.Namespace + "/" + r.Name }

// Frame returns the rows at a time. A pod has rates from its second sample on.
func (v *RouteView) Frame(now time.Time, q Query) RouteFrame {
	f := RouteFrame{Time: now, Namespace: q.Namespace, Filter: q.Filter, Of: len(v.pods), Rows: []RouteRow{}}
	rows, notes := map[RouteName]*RouteRow{}, remarks{}
	for _, name := range slices.Sorted(maps.Keys(v.pods)) {
		p := v.pods[name]
		if text := v.silence(&p.contact, now); text != "" {
			notes.add(text, name)
		}
		if !v.counts(&p.contact, now) {
			continue
		}
		f.Pods++
		for name, got := range p.rows {
			if rows[name] == nil {
				ns, short, _ := strings.Cut(name.Name, "/")
				rows[name] = &RouteRow{Gateway: name.Gateway, Kind: name.Kind, Namespace: ns, Name: short}
			}
			rows[name].add(got)
		}
	}
	for _, r := range rows {
		if (q.Namespace == "" || r.Namespace == q.Namespace) && strings.Contains(r.Label(), q.Filter) {
			f.Rows = append(f.Rows, r.rounded())
		}
	}
	f.Notes = notes.lines()
	slices.SortFunc(f.Rows, q.Sort.compareRoutes)
	return f
}

func (r *RouteRow) add(got routeRates) {
	r.RequestsPerSecond += float64(got.Requests) / got.seconds
	r.ClientErrorsPerSecond += float64(got.ClientErrors) / got.seconds
	r.ServerErrorsPerSecond += float64(got.ServerErrors) / got.seconds
	r.BytesPerSecond += float64(got.Bytes) / got.seconds
	r.seconds += got.Seconds
	r.timed += got.Timed
}

func (r *RouteRow) rounded() RouteRow {
	for _, f := range []*float64{&r.RequestsPerSecond, &r.ClientErrorsPerSecond, &r.ServerErrorsPerSecond, &r.BytesPerSecond} {
		*f = math.Round(*f*100) / 100
	}
	if r.timed > 0 {
		mean := math.Round(r.seconds/float64(r.timed)*1e6) / 1e3
		r.Milliseconds = &mean
	}
	return *r
}

// compareRoutes orders rows. Requests are in the place of connections, and errors in that of rejects.
func (s Sort) compareRoutes(a, b RouteRow) int {
	byName := cmp.Or(cmp.Compare(a.route(), b.route()), cmp.Compare(a.Gateway, b.Gateway))
	byRequests := cmp.Compare(b.RequestsPerSecond, a.RequestsPerSecond)
	switch s {
	case ByName:
		return byName
	case ByBytes:
		return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), byRequests, byName)
	case ByRejects:
		return cmp.Or(cmp.Compare(b.ServerErrorsPerSecond, a.ServerErrorsPerSecond), cmp.Compare(b.ClientErrorsPerSecond, a.ClientErrorsPerSecond), byRequests, byName)
	}
	return cmp.Or(byRequests, byName)
}

func (f *RouteFrame) columns() []column[RouteRow] {
	rate := func(head string, of func(*RouteRow) float64) column[RouteRow] {
		return column[RouteRow]{head, true, func(r *RouteRow) string { v := of(r); return short(&v) }}
	}
	return []column[RouteRow]{
		{"ROUTE", false, func(r *RouteRow) string {
			if f.Namespace != "" {
				return r.Kind + "/" + r.Name
			}
			return r.route()
		}},
		{"GATEWAY", false, func(r *RouteRow) string { return cmp.Or(r.Gateway, "-") }},
		rate("REQUESTS/S", func(r *RouteRow) float64 { return r.RequestsPerSecond }),
		rate("4XX/S", func(r *RouteRow) float64 { return r.ClientErrorsPerSecond }),
		rate("5XX/S", func(r *RouteRow) float64 { return r.ServerErrorsPerSecond }),
		{"MS", true, func(r *RouteRow) string {
			if r.Milliseconds == nil {
				return "-"
			}
			return strconv.FormatFloat(*r.Milliseconds, 'f', 1, 64)
		}},
		rate("BYTES/S", func(r *RouteRow) float64 { return r.BytesPerSecond }),
	}
}

// Lines returns the head and the rows of the table. If width is not 0, names are cut so that lines fit it.
func (f *RouteFrame) Lines(_ bool, width int) []string { return tableOf(f.columns(), f.Rows, width) }

// Summary says how many pods and requests the RouteFrame has.
func (f *RouteFrame) Summary() string {
	sum := 0.0
	for _, r := range f.Rows {
		sum += r.RequestsPerSecond
	}
	pods := plural(f.Pods, "gateway pod")
	if f.Pods != f.Of {
		pods = fmt.Sprintf("%d of %s", f.Pods, plural(f.Of, "gateway pod"))
	}
	return pods + ", " + short(&sum) + " requests a second"
}

// Nothing says that the RouteFrame has no row.
func (f *RouteFrame) Nothing() string {
	switch {
	case f.Pods == 0:
		return "No gateway pod has answered yet."
	case f.Filter != "":
		return fmt.Sprintf("No row has %q in its name.", f.Filter)
	case f.Namespace != "":
		return fmt.Sprintf("No route in namespace %s has had a request [-A shows all namespaces].", f.Namespace)
	}
	return "No route has had a request."
}

// WriteTable writes the table for people.
func (f RouteFrame) WriteTable(w io.Writer, wide bool) error {
	return writeTable(w, f.Lines(wide, 0), f.Nothing(), f.Summary(), f.Notes)
}
