package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/text"
)

// LoadBalancers lists the addresses of Services of type LoadBalancer with the nodes that announce them.
type LoadBalancers struct {
	announce.Overview
	Time  time.Time `json:"time"`
	Named bool      `json:"-"` // Services were named: print all of them
}

// OK reports whether a node announces each address, or a balancer outside has it.
func (b LoadBalancers) OK() bool {
	return !slices.ContainsFunc(b.Addresses, func(a announce.AddressReport) bool { return len(a.Announced) == 0 })
}

// Only keeps the addresses of the named Services. Without names it keeps all.
func (b *LoadBalancers) Only(names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(b.Addresses, func(a announce.AddressReport) bool { return slices.Contains(a.Services, name) }) {
			return fmt.Errorf("there is no Service %s of type LoadBalancer that is for these speakers [write NAMESPACE/SERVICE; --lb-class names its spec.loadBalancerClass]", name)
		}
	}
	if len(names) > 0 {
		b.Addresses = slices.DeleteFunc(b.Addresses, func(a announce.AddressReport) bool {
			return !slices.ContainsFunc(a.Services, func(s string) bool { return slices.Contains(names, s) })
		})
	}
	return nil
}

// WriteTable implements output.Value. If wide, or for named Services, it also prints why other nodes do not announce.
func (b LoadBalancers) WriteTable(w io.Writer, wide bool) error {
	if len(b.Addresses) == 0 && len(b.Problems) == 0 {
		_, err := fmt.Fprintln(w, "No Service of type LoadBalancer is here.")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SERVICE\tADDRESS\tPROTOCOL\tNODE\tSINCE\tINTERFACES/PEERS")
	var not []string
	for _, a := range b.Addresses {
		address, services := cmp.Or(a.Address, "<pending>"), strings.Join(a.Services, ",")
		for _, n := range a.Announced {
			fmt.Fprintln(tw, strings.Join([]string{services, address, string(n.Protocol), orDash(n.Node), age(b.Time, n.Since), orDash(strings.Join(n.By, ","))}, "\t"))
		}
		if len(a.Announced) == 0 {
			fmt.Fprintln(tw, strings.Join([]string{services, address, "-", "-", "-", "-"}, "\t"))
			not = append(not, services+" "+address+": "+a.Reason)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	section(w, "Not announced:", not)
	if wide || b.Named {
		section(w, "Why not elsewhere:", b.elsewhere())
	}
	section(w, "Speakers:", b.speakers(wide))
	section(w, "Problems of the configuration:", b.Problems)
	return nil
}

// elsewhere returns a line for each node that does not announce, with the reason.
func (b LoadBalancers) elsewhere() (lines []string) {
	for _, a := range b.Addresses {
		for _, n := range a.Elsewhere {
			to := ""
			if n.Peer != "" {
				to = " to " + n.Peer
			}
			lines = append(lines, fmt.Sprintf("%s %s %s%s: %s", a.Address, n.Protocol, n.Node, to, n.Reason)+b.since(n.Since))
		}
	}
	return lines
}

// speakers returns a line for each unhealthy speaker: a session is down, it has no grant, or it leaves its addresses to
// other nodes. If wide, it returns all speakers.
func (b LoadBalancers) speakers(wide bool) (lines []string) {
	for _, s := range b.Speakers {
		if s.Addr.IsValid() { // the address's report has the reason of a refusal
			continue
		}
		if s.Peer == "" && s.Up && s.Reason != "" {
			lines = append(lines, s.Node+": "+s.Reason) // Since is the time of the grant
			continue
		}
		if s.Up && !wide {
			continue
		}
		what := "the voters grant what it asks for"
		switch {
		case s.Peer != "" && s.Up:
			what = "the session with " + s.Peer + " is up"
		case s.Peer != "":
			what = "the session with " + s.Peer + " is not up: " + s.Reason
		case !s.Up:
			what = "it announces nothing by ARP and neighbour discovery: " + s.Reason
		}
		lines = append(lines, s.Node+": "+what+b.since(s.Since))
	}
	return lines
}

// since returns for how long something has been so, or "".
func (b LoadBalancers) since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " (for " + age(b.Time, t) + ")"
}

// section writes lines under a head. They fit a terminal.
func section(w io.Writer, head string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s\n", head)
	for _, line := range lines {
		fmt.Fprintln(w, text.Indented(line, "  "))
	}
}
