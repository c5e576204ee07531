package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
)

// String returns the table as text, for tests: the settings, then a line for each frontend and scope, sorted.
//
//	Addr             Scope    Service          Action   Masquerade  Endpoints
//	10.96.0.9:80/TCP any      ns/web:http      forward  off-cluster 10.0.2.5:8080(local),10.0.3.4:8080
//	*:30080/TCP      external ns/web:http      drop     -           -
func (t *Table) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%v\n", t.Settings)
	for _, h := range t.HealthChecks {
		fmt.Fprintf(&out, "health %v port %d endpoints IPv4 %d IPv6 %d\n", h.Service, h.Port, h.Endpoints4, h.Endpoints6)
	}
	tw := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "Addr\tScope\tService\tAction\tMasquerade\tEndpoints")
	for _, f := range t.Sorted() {
		for _, row := range f.rows() {
			fmt.Fprintln(tw, strings.Join(append(row, f.termination()...), "\t"))
		}
	}
	_ = tw.Flush() // to a Builder, which takes everything
	return out.String()
}

// rows returns one row for the frontend, or two rows if the packet's origin matters.
func (f *Frontend) rows() [][]string {
	row := func(scope string, r *Route) []string {
		masq := "-"
		if r.Action == Forward {
			masq = r.Masquerade.String()
		}
		fields := []string{f.Key().String(), scope, f.Service.String(), r.Action.String(), masq, list(r.Endpoints)}
		if f.Balance != Random {
			fields = append(fields, "balance "+f.Balance.String())
		}
		if f.Affinity > 0 {
			fields = append(fields, "affinity "+f.Affinity.String())
		}
		if f.LoadBalancer {
			fields = append(fields, "load-balancer")
		}
		if f.OnNode {
			fields = append(fields, "on-node")
		}
		if len(f.Sources) > 0 {
			fields = append(fields, "from "+list(f.Sources))
		}
		return fields
	}
	if f.Internal.Equal(f.External) {
		return [][]string{row("any", f.Internal)}
	}
	return [][]string{row("internal", f.Internal), row("external", f.External)}
}

// termination returns the columns for existing flows, which datapaths do not know.
func (f *Frontend) termination() []string {
	var fields []string
	if f.Termination != TerminateGone {
		fields = append(fields, "close "+f.Termination.String())
	}
	if len(f.Retained) > 0 {
		fields = append(fields, "retains "+list(f.Retained))
	}
	return fields
}

// Lines returns the frontend's rows as text, the fields separated by a space.
func (f *Frontend) Lines() []string {
	var lines []string
	for _, row := range f.rows() {
		lines = append(lines, strings.Join(row, " "))
	}
	return lines
}

// String returns the settings as in the text of a Table.
func (s Settings) String() string {
	text := fmt.Sprintf("pods %s\nnodeports %s", list(s.Pods), list(s.NodePorts))
	if len(s.PodInterfaces) > 0 {
		text += "\npod interfaces " + strings.Join(s.PodInterfaces, ",")
	}
	if len(s.ServiceCIDRs) > 0 {
		text += "\nservices " + list(s.ServiceCIDRs)
	}
	return text
}

// String returns "10.0.2.5:8080", followed by "(local)" for an endpoint on this node and "*3" for a weight.
func (e Endpoint) String() string {
	s := e.Addr.String()
	if e.Local {
		s += "(local)"
	}
	if e.Weight != 0 {
		s += fmt.Sprintf("*%d", e.Weight)
	}
	return s
}

// list joins values with commas; "-" if there are none.
func list[T fmt.Stringer](all []T) string {
	if len(all) == 0 {
		return "-"
	}
	texts := make([]string, len(all))
	for i, v := range all {
		texts[i] = v.String()
	}
	return strings.Join(texts, ",")
}

// samePrefixes reports whether two sets of prefixes are equal.
func samePrefixes(a, b []netip.Prefix) bool {
	sorted := func(all []netip.Prefix) []netip.Prefix {
		all = slices.Clone(all)
		slices.SortFunc(all, netip.Prefix.Compare)
		return slices.Compact(all)
	}
	return slices.Equal(sorted(a), sorted(b))
}
