package service

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/fairway-net/fairway/internal/api"
)

// An Origin is where a packet comes from, as far as a Frontend tells clients apart.
type Origin string

// The origins.
const (
	FromPod     Origin = "pod"
	FromNode    Origin = "node"
	FromOutside Origin = "outside"
)

// Origins returns all of them, in the order in which a Report has them.
func Origins() []Origin { return []Origin{FromPod, FromNode, FromOutside} }

// ParseOrigins returns the origin of that name; all if text is empty.
func ParseOrigins(text string) ([]Origin, error) {
	all := Origins()
	if text == "" {
		return all, nil
	}
	if i := slices.Index(all, Origin(text)); i >= 0 {
		return all[i : i+1], nil
	}
	return nil, fmt.Errorf("%q is not a place [choose pod, node or outside]", text)
}

// A Report says what a node does for one Service and why: the answers of Decide and
// Explain, for people (WriteTo) and for programs (its JSON).
type Report struct {
	Service   string           `json:"service"`
	Node      string           `json:"node"`
	Zone      string           `json:"zone,omitempty"`
	Frontends []FrontendReport `json:"frontends"`
	Problems  []api.Problem    `json:"problems,omitempty"`
}

// A FrontendReport is about one address of the Service.
type FrontendReport struct {
	Address  string          `json:"address"` // "10.96.0.9:80/TCP"
	Port     string          `json:"port,omitempty"`
	Kind     Kind            `json:"kind"`
	ServedAt []string        `json:"servedAt,omitempty"` // of a NodePort: the node's addresses in these ranges
	Options  []string        `json:"options,omitempty"`  // affinity, balance, source ranges
	Traffic  []TrafficReport `json:"traffic"`
}

// A TrafficReport is about packets from one origin.
type TrafficReport struct {
	From   Origin `json:"from"`
	Action string `json:"action"`
	Reason string `json:"reason"`
	// Internal says which of the Service's traffic policies counts.
	Internal bool `json:"internal"`
	// Source is whose address the endpoints see: client or node. A hairpin packet always
	// has the node's.
	Source    string           `json:"source,omitempty"`
	Endpoints []EndpointReport `json:"endpoints"`
}

// An EndpointReport is about one endpoint of the Service's slices.
type EndpointReport struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	Node    string `json:"node,omitempty"`
	Slice   string `json:"slice"`
	Used    bool   `json:"used"`
	Reason  string `json:"reason,omitempty"` // of one that is not used
}

// NewReport reports what a node does for svc, whose endpoints are in eps, with packets from
// the given origins. entry is the Service's in the node's table, where older Services may
// have taken addresses.
func NewReport(svc *Service, eps []*Slice, node Node, entry *Entry, from []Origin) Report {
	r := Report{Service: svc.Name.String(), Node: node.Name, Zone: node.Zone, Problems: entry.Problems}
	all := Explain(svc, eps, node, entry)
	for _, f := range entry.Frontends {
		one := f.report(node.Settings)
		var mine []Explanation
		for _, x := range all {
			if x.Service == f.Service && x.Proto == f.Proto && (x.Addr.Addr().Is4() == f.Addr.Addr().Is4() || x.Internal == OtherFamily) {
				mine = append(mine, x)
			}
		}
		for _, o := range from {
			one.Traffic = append(one.Traffic, f.traffic(o, node.Settings, mine))
		}
		r.Frontends = append(r.Frontends, one)
	}
	slices.SortStableFunc(r.Frontends, func(a, b FrontendReport) int { return cmp.Compare(a.order(), b.order()) })
	return r
}

// order puts the ClusterIPs first.
func (f FrontendReport) order() int {
	return slices.Index(Kinds(), f.Kind)
}

func (f *Frontend) report(s Settings) FrontendReport {
	r := FrontendReport{Address: f.Key().String(), Port: f.Service.Port, Kind: f.Kind()}
	if r.Kind == KindNodePort {
		r.ServedAt = s.servedAt(f.Addr.Addr().Is4())
	}
	if f.Balance != Random {
		r.Options = append(r.Options, "balance "+f.Balance.String())
	}
	if f.Affinity > 0 {
		r.Options = append(r.Options, "affinity "+f.Affinity.String())
	}
	if len(f.Sources) > 0 {
		r.Options = append(r.Options, "only clients in "+list(f.Sources))
	}
	return r
}

// servedAt returns where NodePorts of a family are served: addresses, and ranges of them.
func (s Settings) servedAt(is4 bool) (at []string) {
	for _, p := range s.NodePorts {
		switch {
		case p.Addr().Is4() != is4:
		case p.IsSingleIP():
			at = append(at, p.Addr().String())
		default:
			at = append(at, p.String())
		}
	}
	return at
}

// traffic decides about a client that is no endpoint and that may come in.
func (f *Frontend) traffic(o Origin, s Settings, all []Explanation) TrafficReport {
	detect4, detect6 := s.Detect()
	is4 := f.Addr.Addr().Is4()
	p := Packet{To: f.Addr, Proto: f.Proto, FromNode: o == FromNode, FromPod: o == FromPod && (is4 && detect4 || !is4 && detect6)}
	if len(f.Sources) > 0 {
		p.From = f.Sources[0].Addr()
	}
	d := f.Decide(p)
	r := TrafficReport{From: o, Action: d.Action.String(), Reason: d.Reason.String(), Internal: p.Internal(), Endpoints: []EndpointReport{}}
	if d.Action == Forward {
		r.Source = "client"
		if p.FromNode || d.Masquerades(Endpoint{}) {
			r.Source = "node"
		}
	}
	for _, x := range all {
		e := EndpointReport{Address: x.Addr.String(), Pod: x.Pod, Node: x.Node, Slice: x.Slice.Name}
		if x.Addr.Port() == 0 && x.Addr.Addr().IsValid() {
			e.Address = x.Addr.Addr().String()
		}
		if why := x.At(f, p.Internal()); why == Used {
			e.Used = true
		} else {
			e.Reason = why.String()
		}
		r.Endpoints = append(r.Endpoints, e)
	}
	return r
}

// WriteTo writes the report for people.
func (r Report) WriteTo(w io.Writer) (int64, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "Service %s on node %s", r.Service, r.Node)
	if r.Zone != "" {
		fmt.Fprintf(&out, " (zone %s)", r.Zone)
	}
	out.WriteString("\n")
	for _, p := range r.Problems {
		fmt.Fprintf(&out, "%s: %s\n", p.Reason, p.Message)
	}
	if len(r.Frontends) == 0 {
		out.WriteString("It has no address on this node: packets to it are not for the service proxy.\n")
	}
	for _, f := range r.Frontends {
		f.write(&out)
	}
	n, err := io.WriteString(w, out.String())
	return int64(n), err
}

func (f FrontendReport) write(out *strings.Builder) {
	title := []string{string(f.Kind) + " " + f.Address}
	if f.Port != "" {
		title = append(title, "port "+f.Port)
	}
	if f.Kind == KindNodePort {
		at := "served at no address of the node"
		if len(f.ServedAt) > 0 {
			at = "served at " + strings.Join(f.ServedAt, ",")
		}
		title = append(title, at)
	}
	fmt.Fprintf(out, "\n%s\n", strings.Join(append(title, f.Options...), ", "))
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, t := range f.Traffic {
		fmt.Fprintf(tw, "  from %s\t%s\t%s\n", t.From, t.Action, t.consequence())
	}
	_ = tw.Flush() // to a Builder, which takes everything
	f.endpoints(out)
}

// consequence says in words what follows from the action.
func (t TrafficReport) consequence() string {
	if t.Action != Forward.String() {
		return t.Reason
	}
	text := map[string]string{"client": "the endpoint sees the client's address", "node": "the endpoint sees this node's address"}[t.Source]
	if t.From == FromPod && !t.Internal {
		text += "; this node cannot tell pods from clients outside the cluster"
	}
	return text
}

// endpoints writes the candidates, with a column for each class of traffic if they differ.
func (f FrontendReport) endpoints(out *strings.Builder) {
	var columns []TrafficReport
	for _, t := range f.Traffic {
		if !slices.ContainsFunc(columns, func(o TrafficReport) bool { return slices.Equal(o.Endpoints, t.Endpoints) }) {
			columns = append(columns, t)
		}
	}
	if len(columns) == 0 || len(columns[0].Endpoints) == 0 {
		out.WriteString("  no EndpointSlice has an endpoint\n")
		return
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := []string{"  ENDPOINT", "POD", "NODE"}
	for _, c := range columns {
		class := map[bool]string{true: "INTERNAL TRAFFIC", false: "EXTERNAL TRAFFIC"}[c.Internal]
		if len(columns) == 1 {
			class = "NEW CONNECTIONS"
		}
		head = append(head, class)
	}
	fmt.Fprintln(tw, strings.Join(head, "\t"))
	for i, e := range columns[0].Endpoints {
		row := []string{"  " + e.Address, cmp.Or(e.Pod, "-"), cmp.Or(e.Node, "-")}
		for _, c := range columns {
			row = append(row, cmp.Or(c.Endpoints[i].Reason, "yes"))
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	_ = tw.Flush()
}

// WriteTable implements output.Value.
func (r Report) WriteTable(w io.Writer, _ bool) error {
	_, err := r.WriteTo(w)
	return err
}
