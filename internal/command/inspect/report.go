package inspect

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

// writeReport writes a report for people.
func writeReport(w io.Writer, r service.Report) error {
	var out strings.Builder
	fmt.Fprintf(&out, "Service %s on node %s", r.Service, r.Node)
	if r.Zone != "" {
		fmt.Fprintf(&out, " (zone %s)", r.Zone)
	}
	out.WriteString("\n")
	for _, p := range r.Problems {
		out.WriteString(text.Indented(p.Reason+": "+p.Message, "") + "\n")
	}
	if len(r.Frontends) == 0 {
		out.WriteString("It has no address on this node: packets to it are not for the service proxy.\n")
	}
	for _, f := range r.Frontends {
		writeFrontend(&out, f)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func writeFrontend(out *strings.Builder, f service.FrontendReport) {
	title := []string{string(f.Kind) + " " + f.Address}
	if f.Port != "" {
		title = append(title, "port "+f.Port)
	}
	if f.Kind == service.KindNodePort {
		at := "served at no address of the node"
		if len(f.ServedAt) > 0 {
			at = "served at " + strings.Join(f.ServedAt, ",")
		}
		title = append(title, at)
	}
	fmt.Fprintf(out, "\n%s\n", strings.Join(append(title, f.Options...), ", "))
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, t := range f.Traffic {
		fmt.Fprintf(tw, "  from %s\t%s\t%s\n", t.From, t.Action, consequence(t))
	}
	_ = tw.Flush() // to a Builder, which takes everything
	writeEndpoints(out, f)
}

// consequence says in words what follows from the action.
func consequence(t service.TrafficReport) string {
	if t.Action != service.Forward.String() {
		return t.Reason
	}
	sees := map[string]string{"client": "the endpoint sees the client's address", "node": "the endpoint sees this node's address"}[t.Source]
	if t.From == service.FromPod && !t.Internal {
		sees += "; this node cannot tell pods from clients outside the cluster"
	}
	return sees
}

// sameFate reports whether two reports of one endpoint say the same.
func sameFate(a, b service.EndpointReport) bool {
	return a.Address == b.Address && a.Reason == b.Reason
}

// writeEndpoints writes the endpoints, with a column for each class of traffic if they differ.
func writeEndpoints(out *strings.Builder, f service.FrontendReport) {
	var columns []service.TrafficReport
	for _, t := range f.Traffic {
		if !slices.ContainsFunc(columns, func(o service.TrafficReport) bool { return slices.EqualFunc(o.Endpoints, t.Endpoints, sameFate) }) {
			columns = append(columns, t)
		}
	}
	if len(columns) == 0 || len(columns[0].Endpoints) == 0 {
		out.WriteString("  no EndpointSlice has an endpoint\n")
		return
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := []string{"  ENDPOINT", "POD", "NODE"}
	weighted := columns[0].Endpoints[0].Weight != nil
	if weighted {
		head = append(head, "WEIGHT")
	}
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
		if weighted {
			row = append(row, strconv.Itoa(int(*e.Weight)))
		}
		for _, c := range columns {
			row = append(row, cmp.Or(c.Endpoints[i].Reason, "yes"))
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	_ = tw.Flush()
}
