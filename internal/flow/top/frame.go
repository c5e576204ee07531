package top

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Sort is the figure that orders rows: the largest first.
type Sort string

// The orders.
const (
	ByConnections Sort = "connections"
	ByNew         Sort = "new"
	ByBytes       Sort = "bytes"
	ByRejects     Sort = "rejects"
	ByName        Sort = "name"
)

// Sorts returns all orders.
func Sorts() []string {
	return []string{string(ByConnections), string(ByNew), string(ByBytes), string(ByRejects), string(ByName)}
}

// A Query selects the rows of a Frame.
type Query struct {
	Namespace string // empty: all
	// Service selects one Service, with a row for each of its endpoints.
	Service api.Name
	// Filter is a part of the row's name.
	Filter string
	Sort   Sort
}

// A Frame is what a View shows at one time. Programs read its JSON, so the fields stay.
type Frame struct {
	Time      time.Time `json:"time"`
	Namespace string    `json:"namespace,omitempty"` // empty: all
	Service   string    `json:"service,omitempty"`   // of the endpoints
	Filter    string    `json:"filter,omitempty"`
	// Nodes is the number of nodes whose figures count, of Of that were asked.
	Nodes int   `json:"nodes"`
	Of    int   `json:"of"`
	Rows  []Row `json:"rows"`
	// Notes say which figures are missing, and why.
	Notes []string `json:"notes"`
}

// A Row has the figures of a Service port, or of an endpoint of one. Rates are nil if they are not known.
type Row struct {
	Namespace string          `json:"namespace"`
	Service   string          `json:"service"`
	Port      string          `json:"port,omitempty"`
	Endpoint  *netip.AddrPort `json:"endpoint,omitempty"`
	// Nodes are the nodes with figures of the row.
	Nodes int `json:"nodes"`

	Connections      int      `json:"connections"`
	Unanswered       int      `json:"unanswered"`
	NewPerSecond     *float64 `json:"newPerSecond"`
	BytesPerSecond   *float64 `json:"bytesPerSecond"`
	RejectsPerSecond *float64 `json:"rejectsPerSecond"`
	DropsPerSecond   *float64 `json:"dropsPerSecond"`
	// Sums since the first sample, as far as they are known. An endpoint has none.
	New     *uint64 `json:"new,omitempty"`
	Bytes   *uint64 `json:"bytes,omitempty"`
	Rejects *uint64 `json:"rejects,omitempty"`
	Drops   *uint64 `json:"drops,omitempty"`
}

// Name returns "namespace/service:port", or an endpoint's port and address.
func (r *Row) Name() string {
	n := api.PortName{Name: api.Name{Namespace: r.Namespace, Name: r.Service}, Port: r.Port}.String()
	if r.Endpoint != nil {
		return n + " " + r.Endpoint.String()
	}
	return n
}

// Frame returns the rows at a time.
func (v *View) Frame(now time.Time, q Query) Frame {
	f := Frame{Time: now, Namespace: q.Namespace, Filter: q.Filter, Nodes: v.Answered(now), Of: len(v.nodes), Notes: v.notes(now)}
	var rows map[place]*Row
	if q.Service != (api.Name{}) {
		f.Service, f.Namespace = q.Service.Name, q.Service.Namespace
		rows = v.endpointRows(now, q.Service)
	} else {
		rows = v.serviceRows(now, q.Namespace)
	}
	f.Rows = make([]Row, 0, len(rows))
	for _, r := range rows {
		if strings.Contains(r.Name(), q.Filter) {
			f.Rows = append(f.Rows, *r)
		}
	}
	slices.SortFunc(f.Rows, q.Sort.compare)
	return f
}

// serviceRows returns a row for each Service port that has connections now, or has had figures since the View began.
func (v *View) serviceRows(now time.Time, namespace string) map[place]*Row {
	rows := map[place]*Row{}
	for name, t := range v.services {
		if namespace != "" && name.Namespace != namespace {
			continue
		}
		r := newRow(name)
		for _, n := range v.nodes {
			if !v.counts(&n.contact, now) {
				continue
			}
			got, has := n.rows[name]
			if !has {
				got.measured = n.measured // the node has none of it, and so counts 0
			} else {
				r.Nodes++
			}
			r.add(got, n.last)
		}
		if r.Connections+r.Unanswered > 0 || *t != (totals{}) {
			r.addTotals(*t)
			rows[place{service: name}] = r
		}
	}
	return rows
}

// addTotals adds the sums of the figures that a node has.
func (r *Row) addTotals(t totals) {
	for _, f := range []struct {
		rate *float64
		to   **uint64
		sum  uint64
	}{
		{r.NewPerSecond, &r.New, t.New}, {r.BytesPerSecond, &r.Bytes, t.Bytes},
		{r.RejectsPerSecond, &r.Rejects, t.Rejects}, {r.DropsPerSecond, &r.Drops, t.Drops},
	} {
		if f.rate != nil {
			*f.to = &f.sum
		}
	}
}

func (v *View) endpointRows(now time.Time, service api.Name) map[place]*Row {
	rows := map[place]*Row{}
	if service != v.asked {
		return rows // no sample has them yet
	}
	for _, n := range v.nodes {
		if !v.counts(&n.contact, now) {
			continue
		}
		for at, got := range n.endpoints {
			r := rows[at]
			if r == nil {
				r = newRow(at.service)
				r.Endpoint = &at.endpoint
				rows[at] = r
			}
			r.add(got, n.last)
			r.Nodes++
		}
	}
	for _, r := range rows {
		r.RejectsPerSecond, r.DropsPerSecond = nil, nil // the rules count them for Services only
	}
	return rows
}

func newRow(n api.PortName) *Row {
	return &Row{Namespace: n.Namespace, Service: n.Name.Name, Port: n.Port}
}

// add adds the figures of one node. A figure that the node does not have stays as it is.
func (r *Row) add(got rates, s *Sample) {
	r.Connections += got.Connections
	r.Unanswered += got.Unanswered
	sum := func(to **float64, known bool, more float64) {
		if !known || !got.measured {
			return
		}
		if *to != nil {
			more += **to
		}
		more = math.Round(more*100) / 100
		*to = &more
	}
	sum(&r.NewPerSecond, true, got.new)
	sum(&r.BytesPerSecond, s.CountsBytes, got.bytes)
	sum(&r.RejectsPerSecond, s.CountsRejects, got.rejects)
	sum(&r.DropsPerSecond, s.CountsDrops, got.drops)
}

// compare orders rows: the largest figure first, then by name.
func (s Sort) compare(a, b Row) int {
	number := func(f *float64) float64 {
		if f == nil {
			return -1
		}
		return *f
	}
	byConnections := cmp.Compare(b.Connections+b.Unanswered, a.Connections+a.Unanswered)
	first := 0
	switch s {
	case ByName:
		return cmp.Compare(a.Name(), b.Name())
	case ByNew:
		first = cmp.Compare(number(b.NewPerSecond), number(a.NewPerSecond))
	case ByBytes:
		first = cmp.Compare(number(b.BytesPerSecond), number(a.BytesPerSecond))
	case ByRejects:
		refused := func(r Row) float64 { return number(r.RejectsPerSecond) + number(r.DropsPerSecond) }
		first = cmp.Compare(refused(b), refused(a))
	}
	return cmp.Or(first, byConnections, cmp.Compare(a.Name(), b.Name()))
}

// ParseSort returns the order of that name.
func ParseSort(text string) (Sort, error) {
	if !slices.Contains(Sorts(), text) {
		return "", fmt.Errorf("--sort: %q is not a figure [choose one of %s]", text, strings.Join(Sorts(), ", "))
	}
	return Sort(text), nil
}
