package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/text"
)

// ExplainObject says in words what an object's report means: attached or refused, and by which rule. A Gateway has the
// listeners of its ListenerSets, too.
func (c *Compiler) ExplainObject(ref Ref) (lines []string) {
	r, ours := c.reports.all[ref]
	if !ours {
		if c.objects[ref] == nil {
			return []string{ownerText(ref) + " does not exist"}
		}
		return []string{ownerText(ref) + " is not ours: no class or parent of it belongs to this controller"}
	}
	lines = append(lines, conditionLines(ownerText(ref), r.Conditions)...)
	lines = append(lines, listenerLines(r.Listeners, "")...)
	if unit := c.gateways[ref]; unit != nil {
		for _, set := range unit.owners {
			if set != ref {
				lines = append(lines, listenerLines(c.reports.all[set].Listeners, " of "+ownerText(set))...)
			}
		}
	}
	for _, p := range r.Parents {
		name := p.Parent.Kind + " " + p.Parent.in(ref.Namespace).String()
		if p.Parent.Section != "" {
			name += " listener " + p.Parent.Section
		}
		lines = append(lines, conditionLines("at "+name, p.Conditions)...)
	}
	for _, p := range r.Problems {
		lines = append(lines, p.Reason+": "+p.Message)
	}
	return append(lines, c.attachedLines(ref)...)
}

// attachedLines says to which listeners a route is attached.
func (c *Compiler) attachedLines(ref Ref) (lines []string) {
	unit := c.routes[ref]
	if unit == nil {
		return nil
	}
	for _, a := range unit.attached {
		for _, h := range a.hosts {
			owner, name := "the Ingresses", ""
			if a.listener != nil {
				owner, name = ownerText(a.listener.Owner), " listener "+a.listener.Name
			}
			lines = append(lines, fmt.Sprintf("attached to %s%s, host %s", owner, name, cmp.Or(h, "* (all)")))
		}
	}
	return lines
}

func listenerLines(all []ListenerReport, of string) (lines []string) {
	for _, l := range all {
		lines = append(lines, conditionLines("listener "+l.Name+of, l.Conditions, text.Count(l.Attached, "route"))...)
	}
	return lines
}

// conditionLines has one line with the given texts and the conditions that are as they should be, and one for each other
// condition.
func conditionLines(of string, all []Condition, good ...string) (lines []string) {
	for _, c := range all {
		if c.Status != (c.Type == conflicted) && c.Message == "" {
			if c.Status {
				good = append(good, c.Type)
			}
			continue
		}
		line := fmt.Sprintf("%s: %s is %v (%s)", of, c.Type, c.Status, c.Reason)
		if c.Message != "" {
			line += ": " + c.Message
		}
		lines = append(lines, line)
	}
	if len(good) > 0 {
		lines = append([]string{of + ": " + strings.Join(good, ", ")}, lines...)
	}
	return lines
}

// WhyUnserved says why listeners of a Gateway at a port do not serve a host.
func (c *Compiler) WhyUnserved(gateway Ref, port uint16, host string) (why []string) {
	unit := c.gateways[gateway]
	if unit == nil {
		return nil
	}
	for _, d := range unit.drafts {
		if p := d.spec.Hostname; d.spec.Port != port || p != "" && p != host && !covers(p, host) {
			continue
		}
		for _, l := range c.reports.all[d.Owner].Listeners {
			for _, x := range l.Conditions {
				if l.Name == d.Name && x.Type == programmed && !x.Status {
					why = append(why, fmt.Sprintf("listener %s: %s", l.Name, cmp.Or(x.Message, x.Reason)))
				}
			}
		}
	}
	return why
}

// GatewaysOf returns the Gateways to which a route is attached, sorted.
func (c *Compiler) GatewaysOf(route Ref) (names []api.Name) {
	if unit := c.routes[route]; unit != nil {
		for _, a := range unit.attached {
			if a.listener != nil && !slices.Contains(names, a.listener.gateway) {
				names = append(names, a.listener.gateway)
			}
		}
	}
	slices.SortFunc(names, api.Name.Compare)
	return names
}
