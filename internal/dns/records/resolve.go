package records

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxAliases is the number of ExternalNames in a row that are followed.
const maxAliases = 10

// Resolve returns the records that answer a question, sorted and each once, and the reason. The order of a server's answer
// is random.
func Resolve(c Cluster, q Question) ([]Record, Why) {
	c.Zone = strings.ToLower(strings.Trim(cmp.Or(c.Zone, "cluster.local"), "."))
	answer, why := c.resolve(strings.ToLower(strings.TrimSuffix(q.Name, ".")), strings.ToUpper(q.Type), 0)
	slices.SortFunc(answer, func(a, b Record) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Data, b.Data)) })
	return slices.Compact(answer), why
}

// resolve answers a question for a lower-case name without dot at the end. aliases is the number of ExternalNames that led
// to the name.
func (c Cluster) resolve(name, qtype string, aliases int) ([]Record, Why) {
	if strings.HasSuffix(name, ".in-addr.arpa") || strings.HasSuffix(name, ".ip6.arpa") {
		return c.reverse(name, qtype)
	}
	rest, inZone := strings.CutSuffix("."+name, "."+c.Zone)
	if !inZone {
		return nil, OtherZone
	}
	labels := strings.Split(strings.TrimPrefix(rest, "."), ".") // [ENDPOINT.|_PORT._PROTO.]SERVICE.NAMESPACE.svc
	if rest == "" {
		labels = nil
	}
	slices.Reverse(labels)
	switch n := len(labels); {
	case n == 0:
		return nil, OnlyNamespace
	case labels[0] != "svc" && labels[0] != "pod" || n > 5 || labels[0] == "pod" && n > 3:
		return nil, BadName
	case n == 1:
		return nil, OnlyNamespace
	case !slices.Contains(c.Namespaces, labels[1]):
		return nil, NoNamespace
	case n == 2:
		return nil, OnlyNamespace
	case labels[0] == "pod":
		return c.pod(labels[2], labels[1], qtype)
	}
	i := slices.IndexFunc(c.Services, func(s Service) bool { return s.Namespace == labels[1] && s.Name == labels[2] })
	if i < 0 {
		return nil, NoService
	}
	return c.service(c.Services[i], labels[3:], qtype, aliases)
}

// service answers for a Service. before are the labels before its name, the nearest first.
func (c Cluster) service(s Service, before []string, qtype string, aliases int) ([]Record, Why) {
	if s.ExternalName != "" {
		if len(before) > 0 || net.ParseIP(s.ExternalName) != nil {
			return nil, BadAlias
		}
		return c.alias(strings.TrimSuffix(s.ExternalName, "."), qtype, aliases)
	}
	endpoint, port, proto := "", "", ""
	switch len(before) {
	case 1:
		endpoint = before[0]
	case 2:
		proto, port = strings.TrimPrefix(before[0], "_"), strings.TrimPrefix(before[1], "_")
	}
	var targets []target
	why := NoPort
	if len(s.ClusterIPs) > 0 && endpoint == "" {
		for _, ip := range s.ClusterIPs {
			targets = append(targets, targetsAt(ip, c.nameOf(s, ""), s.Ports, port, proto)...)
		}
	} else {
		var ready []Endpoint
		if ready, why = choose(s.Endpoints, endpoint); why == Found {
			why = NoPort
		}
		for _, e := range ready {
			ports := e.Ports
			if len(ports) == 0 {
				ports = []Port{{}} // without ports there are addresses, and no SRV records
			}
			targets = append(targets, targetsAt(e.Address, c.nameOf(s, e.name()), ports, port, proto)...)
		}
	}
	if len(targets) == 0 {
		return nil, why
	}
	return answer(targets, qtype)
}

// choose returns the ready endpoints with a name, or all ready ones if the name is empty.
func choose(all []Endpoint, name string) (ready []Endpoint, why Why) {
	why = NoReadyEndpoint
	if name != "" && !slices.ContainsFunc(all, func(e Endpoint) bool { return e.name() == name }) {
		why = NoEndpoint
	}
	for _, e := range all {
		if e.Ready && (name == "" || e.name() == name) {
			ready, why = append(ready, e), Found
		}
	}
	return ready, why
}

// alias answers for an ExternalName.
func (c Cluster) alias(host, qtype string, aliases int) ([]Record, Why) {
	cname := Record{"CNAME", host + "."}
	switch qtype {
	case "CNAME":
		return []Record{cname}, Found
	case "A", "AAAA":
	default:
		return nil, OtherType
	}
	answer, why := []Record(nil), AliasBroken
	if aliases <= maxAliases {
		answer, why = c.resolve(strings.ToLower(host), qtype, aliases+1)
	}
	switch {
	case why == OtherZone:
		return []Record{cname}, AliasOutside
	case len(answer) == 0:
		return nil, AliasBroken
	}
	return append(answer, cname), why
}

// A target is an address with a port and the name that SRV records have for it.
type target struct {
	address netip.Addr
	name    string
	port    uint16 // 0: none
}

// targetsAt returns the targets of an address: those of the ports with a name and a protocol, which may be empty.
func targetsAt(address netip.Addr, name string, ports []Port, portName, proto string) (all []target) {
	for _, p := range ports {
		if (portName == "" || strings.EqualFold(p.Name, portName)) && (proto == "" || strings.EqualFold(p.Proto, proto)) {
			all = append(all, target{address, name, p.Number})
		}
	}
	return all
}

// answer makes the records of a type for targets. All SRV records have the same weight: a part of 100, at least 1.
func answer(targets []target, qtype string) (all []Record, why Why) {
	why = OtherType
	weight := max(1, 100/len(targets))
	for _, t := range targets {
		switch {
		case qtype == "A" && t.address.Is4(), qtype == "AAAA" && t.address.Is6():
			all = append(all, Record{qtype, t.address.String()})
		case qtype == "A", qtype == "AAAA":
			why = OtherFamily
		case qtype == "SRV" && t.port != 0:
			all = append(all, Record{qtype, fmt.Sprintf("0 %d %d %s", weight, t.port, t.name)})
		}
	}
	if len(all) > 0 {
		why = Found
	}
	return all, why
}

// nameOf returns the name of a Service, or of one of its endpoints.
func (c Cluster) nameOf(s Service, endpoint string) string {
	name := s.Name + "." + s.Namespace + ".svc." + c.Zone + "."
	if endpoint != "" {
		name = endpoint + "." + name
	}
	return name
}

// pod answers for the name of a pod's address.
func (c Cluster) pod(label, namespace, qtype string) ([]Record, Why) {
	text := strings.ReplaceAll(label, "-", ":")
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		text = strings.ReplaceAll(label, "-", ".")
	}
	address, err := netip.ParseAddr(text)
	if err != nil || c.NoPods || c.Pods != nil && !slices.Contains(c.Pods, Pod{namespace, address}) {
		return nil, NoPodName
	}
	if qtype == "SRV" {
		return nil, OtherType
	}
	return answer([]target{{address: address}}, qtype)
}

// reverse answers for the name of an address: with the Service that has it, else with the endpoints.
func (c Cluster) reverse(name, qtype string) (all []Record, why Why) {
	address, ok := parseReverse(name)
	if !ok || qtype != "PTR" {
		return nil, BadName
	}
	for _, s := range c.Services {
		if slices.Contains(s.ClusterIPs, address) {
			return []Record{{"PTR", c.nameOf(s, "")}}, Found
		}
	}
	for _, s := range c.Services {
		for _, e := range s.Endpoints {
			if e.Ready && e.Address == address {
				all = append(all, Record{"PTR", c.nameOf(s, e.name())})
			}
		}
	}
	if len(all) == 0 {
		return nil, NoAddress
	}
	return all, Found
}

// parseReverse reads the address in a name as 1.0.0.10.in-addr.arpa or 1.0.….d.f.ip6.arpa.
func parseReverse(name string) (address netip.Addr, ok bool) {
	if text, four := strings.CutSuffix(name, ".in-addr.arpa"); four {
		parts := strings.Split(text, ".")
		slices.Reverse(parts)
		address, err := netip.ParseAddr(strings.Join(parts, "."))
		return address, err == nil && address.Is4()
	}
	digits := strings.Split(strings.TrimSuffix(name, ".ip6.arpa"), ".")
	slices.Reverse(digits)
	if len(digits) != 32 {
		return address, false
	}
	var bytes [16]byte
	for i, d := range digits {
		n, err := strconv.ParseUint(d, 16, 4)
		if err != nil || len(d) != 1 {
			return address, false
		}
		bytes[i/2] = bytes[i/2]<<4 | byte(n)
	}
	return netip.AddrFrom16(bytes), true
}
