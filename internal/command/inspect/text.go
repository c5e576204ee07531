package inspect

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
)

// legend explains a Listing's columns.
const legend = `
FROM  cluster: pods and nodes; external: other clients; any: both
SNAT  whose source address becomes the node's. hairpin-only: an endpoint's that connects to itself;
      non-pods: also that of clients that are not pods; always: all clients'
`

// dumped is the value of `fairway dump`.
type dumped struct{ datapath.Listing }

// WriteTable implements output.Value: the Services of each mode, then the kernel objects if they were asked for.
func (d dumped) WriteTable(w io.Writer, wide bool) error {
	for i, m := range d.Modes {
		last := i == len(d.Modes)-1
		if err := writeListing(w, m.Listing, wide, last && m.Objects == nil); err != nil {
			return err
		}
		if err := errors.Join(writeEjected(w, m.Ejected), writeObjects(w, m.Objects)); err != nil {
			return err
		}
	}
	return nil
}

// writeEjected writes the endpoints that get no connections for a while.
func writeEjected(w io.Writer, all []datapath.Ejection) (err error) {
	if len(all) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err = fmt.Fprintln(tw, "\nEJECTED\tREASON\tSINCE\tUNTIL\tIN A ROW")
	for _, e := range all {
		_, werr := fmt.Fprintf(tw, "%v/TCP\t%s\t%s\t%s\t%d\n", e.Endpoint, e.Reason, e.Since.Format(time.TimeOnly), e.Until.Format(time.TimeOnly), e.InARow)
		err = errors.Join(err, werr)
	}
	return errors.Join(err, tw.Flush())
}

func writeObjects(w io.Writer, all []datapath.AddressObjects) (err error) {
	for _, a := range all {
		_, werr := fmt.Fprintf(w, "\n%s %s\n", a.Address, a.Service)
		err = errors.Join(err, werr)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, o := range a.Objects {
			_, werr := fmt.Fprintf(tw, "  %s\t%s\t%s\n", o.Kind, o.Name, o.Text)
			err = errors.Join(err, werr)
		}
		err = errors.Join(err, tw.Flush())
	}
	return err
}

// writeListing writes a line for each row; wide, a line for each endpoint.
func writeListing(w io.Writer, l service.Listing, wide, withLegend bool) error {
	fmt.Fprintf(w, "mode %s; pods %s; NodePorts at %s; ClusterIPs from %s\n", l.Mode, orDash(l.Pods), orDash(l.NodePorts), orDash(l.ServiceCIDRs))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(rowHead(wide), "\t"))
	for _, r := range l.Services {
		for _, line := range rowLines(r, wide) {
			fmt.Fprintln(tw, strings.Join(line, "\t"))
		}
	}
	if err := tw.Flush(); err != nil || !withLegend {
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

// rowLines returns the columns of a row's only line; wide, of a line for each endpoint.
func rowLines(r service.Row, wide bool) [][]string {
	name := r.Service
	if r.PortName != "" {
		name += ":" + r.PortName
	}
	first := []string{r.Namespace, name, string(r.Kind), hostPort(r.Address, r.Port) + "/" + r.Protocol, r.From, r.Action, orDash(some1(r.SNAT))}
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

// difference is the value of `fairway diff`.
type difference struct{ service.Difference }

// WriteTable implements output.Value. Like diff(1), it writes nothing if nothing differs.
func (d difference) WriteTable(w io.Writer, wide bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(d.Services) > 0 {
		fmt.Fprintln(tw, "\t"+strings.Join(rowHead(wide), "\t"))
	}
	for _, c := range d.Services {
		for _, line := range rowLines(c.Row, wide) {
			fmt.Fprintln(tw, map[string]string{"remove": "-", "add": "+"}[c.Change]+"\t"+strings.Join(line, "\t"))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, s := range d.Settings {
		if _, err := fmt.Fprintf(w, "- %s %s\n+ %s %s\n", s.Setting, orDash(s.Has), s.Setting, orDash(s.Wants)); err != nil {
			return err
		}
	}
	return nil
}
