package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	kubegateway "github.com/fairway-net/fairway/internal/kube/gateway"
	"github.com/fairway-net/fairway/internal/text"
)

// Gateways lists the Gateways with their addresses and listeners.
type Gateways struct {
	kubegateway.Overview
}

// OK reports whether each Gateway and listener is programmed, Ingresses have an address, and all gateway pods are available.
func (g Gateways) OK() bool {
	return g.working() == len(g.Gateways) && (g.podsOK() || !g.Pods.Installed && len(g.Gateways) == 0) && g.ingressesOK()
}

func (g Gateways) podsOK() bool {
	return g.Pods.Installed && g.Pods.Wanted > 0 && g.Pods.Available >= g.Pods.Wanted
}

func (g Gateways) ingressesOK() bool {
	return g.Ingresses == nil || g.Ingresses.Count == 0 || len(g.Ingresses.Addresses) > 0
}

// working counts the Gateways that are programmed with all of their listeners.
func (g Gateways) working() (n int) {
	for _, s := range g.Gateways {
		if s.Programmed && !slices.ContainsFunc(s.Listeners, func(l kubegateway.ListenerState) bool { return !l.Programmed }) {
			n++
		}
	}
	return n
}

// Only keeps the named Gateways. Without names it keeps all.
func (g *Gateways) Only(names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(g.Gateways, func(s kubegateway.GatewayState) bool { return s.Name == name }) {
			return fmt.Errorf("there is no Gateway %s of a class of Fairway [write NAMESPACE/GATEWAY; kubectl get gateways -A lists them]", name)
		}
	}
	if len(names) > 0 {
		g.Ingresses = nil
		g.Gateways = slices.DeleteFunc(g.Gateways, func(s kubegateway.GatewayState) bool { return !slices.Contains(names, s.Name) })
	}
	return nil
}

// WriteTable implements output.Value. Its lines fit a terminal.
func (g Gateways) WriteTable(w io.Writer, _ bool) error {
	if len(g.Gateways) == 0 && !g.Pods.Installed {
		_, err := fmt.Fprintln(w, "No Gateway is here.")
		return err
	}
	for _, s := range g.Gateways {
		state := "programmed"
		if !s.Programmed {
			state = "NOT PROGRAMMED"
		}
		fmt.Fprintln(w, text.Indented("Gateway "+s.Name+": "+state, ""))
		writeField(w, "address", cmp.Or(strings.Join(s.Addresses, ", "), "none"))
		if s.Reason != "" {
			writeField(w, "why", s.Reason)
		}
		for _, l := range s.Listeners {
			name := l.Name
			if l.Set != "" {
				name += " of ListenerSet " + l.Set
			}
			line := fmt.Sprintf("%s: %s %d, host %s, %s", name, l.Protocol, l.Port, cmp.Or(l.Hostname, "* (all)"), text.Count(l.Routes, "route"))
			if s.Programmed && !l.Programmed {
				line += ", NOT PROGRAMMED: " + l.Reason
			}
			writeField(w, "listener", line)
		}
	}
	if i := g.Ingresses; i != nil {
		fmt.Fprintln(w, "Ingresses: "+strconv.Itoa(i.Count))
		writeField(w, "address", cmp.Or(strings.Join(i.Addresses, ", "), "none [kubectl -n kube-system describe service fairway-ingress]"))
	}
	if len(g.Gateways) > 0 || g.Ingresses != nil {
		fmt.Fprintln(w)
	}
	_, err := fmt.Fprintln(w, text.Indented(g.summary(), ""))
	return err
}

func (g Gateways) summary() string {
	line := fmt.Sprintf("%s, %d ok; ", text.Count(len(g.Gateways), "Gateway"), g.working())
	if g.NoGatewayAPI {
		line = "Gateway API is not installed [docs/gateway.md]; "
	}
	switch {
	case !g.Pods.Installed:
		return line + "no gateway pods [fairway upgrade --component gateway]"
	case !g.podsOK():
		return line + fmt.Sprintf("gateway pods: %d of %d available [kubectl -n kube-system get pods -o wide -l app.kubernetes.io/name=fairway-gateway]", g.Pods.Available, g.Pods.Wanted)
	}
	return line + fmt.Sprintf("gateway pods: %d of %d available", g.Pods.Available, g.Pods.Wanted)
}

// writeField writes a name and a text. Further lines of the text are below the first one.
func writeField(w io.Writer, name, value string) {
	const column = 12
	for i, line := range text.Wrap(value, text.Width-column-2) {
		indent := ""
		if i > 0 {
			name, indent = "", "  "
		}
		fmt.Fprintf(w, "  %-*s%s%s\n", column-2, name, indent, line)
	}
}
