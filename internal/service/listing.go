package service

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/fairway-net/fairway/internal/api"
)

// A Listing is what a node does for Services, as commands print it: for people (WriteTable)
// and for programs (its JSON, whose fields stay).
type Listing struct {
	Mode          string   `json:"mode"`
	Pods          []string `json:"pods"` // clients that count as pods: ranges, and interfaces
	NodePorts     []string `json:"nodePortAddresses"`
	ServiceCIDRs  []string `json:"serviceCIDRs"`
	Services      []Row    `json:"services"`
	WithoutLegend bool     `json:"-"`
}

// A Row is one address of a Service, for one class of clients.
type Row struct {
	Service   string `json:"service"`
	Namespace string `json:"namespace"`
	PortName  string `json:"portName,omitempty"`
	Port      uint16 `json:"port"`
	Protocol  string `json:"protocol"`
	Kind      Kind   `json:"kind"`
	// Address is where clients connect to; of a NodePort the node's address, or "*" if it has
	// several.
	Address   string        `json:"address"`
	From      string        `json:"from"`           // any, cluster (pods and nodes), external
	Action    string        `json:"action"`         // forward, reject, drop
	SNAT      string        `json:"snat,omitempty"` // hairpin-only, non-pods, always
	Endpoints []RowEndpoint `json:"endpoints"`
	Balance   string        `json:"balance"`
	Affinity  string        `json:"affinity,omitempty"`
	Sources   []string      `json:"sourceRanges,omitempty"`
}

// A RowEndpoint is an endpoint of a Row.
type RowEndpoint struct {
	Address string `json:"address"`
	Port    uint16 `json:"port"`
	Local   bool   `json:"local"`
	Weight  int    `json:"weight"`
}

// snatWords say of which packets the source address is replaced.
var snatWords = [...]string{MasqueradeHairpin: "hairpin-only", MasqueradeOffCluster: "non-pods", MasqueradeAll: "always"}

// legend explains a Listing's columns.
const legend = `
FROM  cluster: pods and nodes; external: other clients; any: both
SNAT  whose source address becomes the node's. hairpin-only: an endpoint's that connects to itself;
      non-pods: also that of clients that are not pods; always: all clients'
`

// List returns the listing of a table: all of it, or of one namespace.
func (t *Table) List(mode, namespace string) Listing {
	l := Listing{Mode: mode, Pods: texts(t.Settings.Pods), NodePorts: texts(t.Settings.NodePorts), ServiceCIDRs: texts(t.Settings.ServiceCIDRs), Services: []Row{}}
	l.Pods = append(l.Pods, t.Settings.PodInterfaces...)
	for _, f := range t.Sorted() {
		if namespace == "" || f.Service.Namespace == namespace {
			l.Services = append(l.Services, f.list(t.Settings)...)
		}
	}
	slices.SortStableFunc(l.Services, func(a, b Row) int {
		if c := (api.Name{Namespace: a.Namespace, Name: a.Service}).Compare(api.Name{Namespace: b.Namespace, Name: b.Service}); c != 0 {
			return c
		}
		return slices.Index(Kinds(), a.Kind) - slices.Index(Kinds(), b.Kind)
	})
	return l
}

// texts returns values as texts; never nil, which JSON has as null.
func texts[T fmt.Stringer](all []T) []string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = v.String()
	}
	return out
}

// list returns one row, or two if it matters where a packet is from.
func (f *Frontend) list(s Settings) []Row {
	row := func(from string, r *Route) Row {
		o := Row{
			Service: f.Service.Name.Name, Namespace: f.Service.Namespace, PortName: f.Service.Port, Port: f.Addr.Port(), Protocol: f.Proto.String(),
			Kind: f.Kind(), Address: f.Addr.Addr().String(), From: from, Action: r.Action.String(), Balance: f.Balance.String(),
			Sources: texts(f.Sources), Endpoints: make([]RowEndpoint, len(r.Endpoints)),
		}
		if o.Kind == KindNodePort {
			o.Address = "*"
			if at := s.servedAt(f.Addr.Addr().Is4()); len(at) == 1 && !strings.Contains(at[0], "/") {
				o.Address = at[0]
			}
		}
		if r.Action == Forward {
			o.SNAT = snatWords[r.Masquerade]
		}
		if f.Affinity > 0 {
			o.Affinity = f.Affinity.String()
		}
		for i, e := range r.Endpoints {
			o.Endpoints[i] = RowEndpoint{e.Addr.Addr().String(), e.Addr.Port(), e.Local, max(1, int(e.Weight))}
		}
		return o
	}
	if f.Internal.Equal(f.External) {
		return []Row{row("any", f.Internal)}
	}
	return []Row{row("cluster", f.Internal), row("external", f.External)}
}

// WriteTable implements output.Value: a line for each row, wide one for each endpoint.
func (l Listing) WriteTable(w io.Writer, wide bool) error {
	fmt.Fprintf(w, "mode %s; pods %s; NodePorts at %s; ClusterIPs from %s\n", l.Mode, orDash(l.Pods), orDash(l.NodePorts), orDash(l.ServiceCIDRs))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(rowHead(wide), "\t"))
	for _, r := range l.Services {
		for _, line := range r.lines(wide) {
			fmt.Fprintln(tw, strings.Join(line, "\t"))
		}
	}
	if err := tw.Flush(); err != nil || l.WithoutLegend {
		return err
	}
	_, err := io.WriteString(w, legend)
	return err
}

func rowHead(wide bool) []string {
	head := []string{"NAMESPACE", "SERVICE", "KIND", "ADDRESS", "FROM", "ACTION", "SNAT", "ENDPOINTS"}
	if wide {
		head = append(head, "LOCAL", "WEIGHT", "BALANCE", "AFFINITY", "SOURCE RANGES")
	}
	return head
}

// lines returns the columns of the row's line; wide of a line for each endpoint.
func (r Row) lines(wide bool) [][]string {
	name := r.Service
	if r.PortName != "" {
		name += ":" + r.PortName
	}
	first := []string{r.Namespace, name, string(r.Kind), r.at(), r.From, r.Action, orDash(some1(r.SNAT))}
	if !wide {
		var all []string
		for _, e := range r.Endpoints {
			text := hostPort(e.Address, e.Port)
			if e.Local {
				text += "(local)"
			}
			if e.Weight > 1 {
				text += "*" + strconv.Itoa(e.Weight)
			}
			all = append(all, text)
		}
		return [][]string{append(first, orDash(all))}
	}
	last := []string{r.Balance, orDash(some1(r.Affinity)), orDash(r.Sources)}
	if len(r.Endpoints) == 0 {
		return [][]string{slices.Concat(first, []string{"-", "-", "-"}, last)}
	}
	var lines [][]string
	for _, e := range r.Endpoints {
		local := "no"
		if e.Local {
			local = "yes"
		}
		lines = append(lines, slices.Concat(first, []string{hostPort(e.Address, e.Port), local, strconv.Itoa(e.Weight)}, last))
	}
	return lines
}

// at is the address as people write it: "10.96.0.9:80/TCP", "*:30080/TCP".
func (r Row) at() string { return hostPort(r.Address, r.Port) + "/" + r.Protocol }

func hostPort(address string, port uint16) string {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return address + ":" + strconv.Itoa(int(port))
}

// some1 is a list of a text; empty for none.
func some1(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

func orDash(all []string) string {
	if len(all) == 0 {
		return "-"
	}
	return strings.Join(all, ",")
}
