package networkpolicy

import (
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// These limits bound the elements of a pod that gives names to ports. In egress rules the first ones of the pod count.
const (
	// MaxNamedPorts limits the ports of a pod that have names.
	MaxNamedPorts = 32
	// maxNames limits the names of one port.
	maxNames = 2
)

// countsNames reports for each named port of a pod whether egress rules may refer to it.
func countsNames(all []api.NamedPort) []bool {
	counts := make([]bool, len(all))
	var counted []api.NamedPort
	ports := 0
	for i, p := range all {
		names := 0
		for _, o := range counted {
			if o.Proto == p.Proto && o.Number == p.Number {
				names++
			}
		}
		if names == maxNames || names == 0 && ports == MaxNamedPorts {
			continue
		}
		if names == 0 {
			ports++
		}
		counts[i], counted = true, append(counted, p)
	}
	return counts
}

// OverPorts returns the pods that exceeded MaxNamedPorts when they were compiled. The map belongs to the Compiler.
func (c *Compiler) OverPorts() map[api.Name]bool { return c.overPorts }

// A namedClass is the class of a named port of an address.
type namedClass struct {
	proto api.Proto
	port  uint16
	class *class
}

// classifyPorts finds the classes of the named ports of an address.
func (c *Compiler) classifyPorts(at *address) {
	old := at.ports
	at.ports = nil
	if at.class != nil && at.owner != nil && len(at.owner.Ports) > 0 && len(c.terms.ports) > 0 {
		at.ports = c.namedClasses(at)
	}
	for _, n := range old {
		c.releaseClass(n.class)
	}
	for _, n := range old {
		if !slices.ContainsFunc(at.ports, n.samePort) {
			c.setPort(PodPort{at.addr, n.proto, n.port}, 0)
		}
	}
	for _, n := range at.ports {
		c.setPort(PodPort{at.addr, n.proto, n.port}, n.class.number)
	}
}

func (n namedClass) samePort(o namedClass) bool { return n.proto == o.proto && n.port == o.port }

// namedClasses returns the classes of the ports whose names a rule needs, with a reference to each.
func (c *Compiler) namedClasses(at *address) (all []namedClass) {
	terms := at.class.terms
	var blocks []*term
	for t := range c.terms.namedBlocks {
		if t.block.Contains(at.addr) {
			blocks = append(blocks, t)
		}
	}
	terms = joinTerms(terms, blocks)
	names, counts := map[PodPort][]*term{}, countsNames(at.owner.Ports)
	var order []PodPort
	for i, port := range at.owner.Ports {
		u, key := c.terms.ports[portName{port.Name, port.Proto}], PodPort{at.addr, port.Proto, port.Number}
		switch {
		case !u.needs(terms) || slices.Contains(names[key], u.term):
		case !counts[i]:
			c.overPorts[at.owner.Name] = true
		default:
			if names[key] == nil {
				order = append(order, key)
			}
			names[key] = append(names[key], u.term)
		}
	}
	for _, key := range order {
		all = append(all, namedClass{key.Proto, key.Port, c.takeClass(joinTerms(terms, names[key]), true)})
	}
	return all
}

func (c *Compiler) setPort(key PodPort, now Class) {
	was := c.table.Ports[key]
	if was == now {
		return
	}
	if c.table.Ports[key] = now; now == 0 {
		delete(c.table.Ports, key)
	}
	note(c.changes.Ports, key, was, now, equalValues)
	c.changes.Revoked = c.changes.Revoked || len(c.cluster) > 0 || c.grantsTo(was)
}
