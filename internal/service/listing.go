package service

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
)

// A Listing shows the table of a node. Programs read its JSON, so the fields stay.
type Listing struct {
	Mode         string   `json:"mode"`
	Pods         []string `json:"pods"` // clients that count as pods: ranges and interfaces
	NodePorts    []string `json:"nodePortAddresses"`
	ServiceCIDRs []string `json:"serviceCIDRs"`
	Services     []Row    `json:"services"`
}

// A Row is one address of a Service for one class of clients.
type Row struct {
	Service   string `json:"service"`
	Namespace string `json:"namespace"`
	PortName  string `json:"portName,omitempty"`
	Port      uint16 `json:"port"`
	Protocol  string `json:"protocol"`
	Kind      Kind   `json:"kind"`
	// Address is the address that clients connect to. For a NodePort it is the node's address, or "*" if the node has
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

// snatWords name the packets that get the source address of the node.
var snatWords = [...]string{MasqueradeHairpin: "hairpin-only", MasqueradeOffCluster: "non-pods", MasqueradeAll: "always"}

// List returns the listing of a table; with a namespace, only of that namespace.
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

// texts returns values as texts. It never returns nil, which JSON shows as null.
func texts[T fmt.Stringer](all []T) []string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = v.String()
	}
	return out
}

// list returns one row for the frontend, or two rows if the packet's origin matters.
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
