package service

import (
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// admit returns the ports that can be served. The API server guarantees all of this, but a table must not break by an
// object that bypassed the API server. A rejected port does not hinder other ports.
func (c *compilation) admit() []Port {
	type number struct {
		proto api.Proto
		port  uint16
	}
	type name struct {
		proto api.Proto
		name  string
	}
	numbers, nodePorts, names := map[number]string{}, map[number]string{}, map[name]struct{}{}
	ports := make([]Port, 0, len(c.svc.Ports))
	for _, p := range c.svc.Ports {
		if limit := c.facts.Limits.Ports; limit > 0 && len(ports) == limit {
			c.problem("TooManyPorts", "%d ports are more than %d; those behind port %d/%v are left out %s",
				len(c.svc.Ports), limit, ports[limit-1].Port, ports[limit-1].Proto, limitAdvice)
			break
		}
		if p.Port == 0 {
			c.problem("InvalidPort", "port %q has no number; it is left out", p.Name)
			continue
		}
		if other, twice := numbers[number{p.Proto, p.Port}]; twice {
			c.problem("DuplicatePort", "port %d/%v of %q is already that of %q; it is left out", p.Port, p.Proto, p.Name, other)
			continue
		}
		if _, twice := names[name{p.Proto, p.Name}]; twice {
			c.problem("DuplicatePort", "port name %q is used twice; port %d/%v is left out", p.Name, p.Port, p.Proto)
			continue
		}
		if other, twice := nodePorts[number{p.Proto, p.NodePort}]; twice {
			c.problem("DuplicatePort", "nodePort %d/%v of %q is already that of %q; it gets none", p.NodePort, p.Proto, p.Name, other)
			p.NodePort = 0
		}
		numbers[number{p.Proto, p.Port}], names[name{p.Proto, p.Name}] = p.Name, struct{}{}
		if p.NodePort != 0 {
			nodePorts[number{p.Proto, p.NodePort}] = p.Name
		}
		ports = append(ports, p)
	}
	return ports
}

// A run is a slice as a source of a Service port's endpoints.
type run struct {
	slice *Slice
	port  uint16 // the port number on the slice's pods; 0: the slice does not have the port
}

// runsOf returns the slices of each port. It examines each port of each slice once.
func runsOf(ports []Port, eps []*Slice) [][]run {
	type name struct {
		proto api.Proto
		name  string
	}
	index := make(map[name]int, len(ports))
	for i, p := range ports {
		index[name{p.Proto, p.Name}] = i
	}
	runs := make([][]run, len(ports))
	if len(runs) == 1 {
		runs[0] = make([]run, 0, len(eps))
	}
	for _, s := range eps {
		for _, q := range s.Ports {
			i, ok := index[name{q.Proto, q.Name}]
			if !ok {
				continue
			}
			if n := len(runs[i]); n > 0 && runs[i][n-1].slice == s {
				continue // the first port of that name counts
			}
			runs[i] = append(runs[i], run{s, q.Port})
		}
	}
	return runs
}

// allRuns returns all slices as sources of a port, also slices that do not have the port.
func allRuns(p Port, eps []*Slice) []run {
	runs := make([]run, len(eps))
	for i, s := range eps {
		runs[i] = run{slice: s}
		if k := slices.IndexFunc(s.Ports, func(q SlicePort) bool { return q.Name == p.Name && q.Proto == p.Proto }); k >= 0 {
			runs[i].port = s.Ports[k].Port
		}
	}
	return runs
}
