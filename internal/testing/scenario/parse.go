package scenario

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// Parse reads one scenario. See the package's documentation for the format.
func Parse(data []byte) (*Scenario, error) {
	s := &Scenario{archive: txtar.Parse(data)}
	objects := ""
	for _, f := range s.archive.Files {
		switch f.Name {
		case "objects.yaml":
			objects = string(f.Data)
		case "table", "problems", "explain":
		default:
			return nil, fmt.Errorf("file %q is none of objects.yaml, table, problems, explain", f.Name)
		}
	}
	var err error
	if s.Services, s.Slices, err = convert(objects); err != nil {
		return nil, err
	}
	s.Facts.Settings.NodePorts = primary()
	for i, line := range strings.Split(string(s.archive.Comment), "\n") {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 0 {
			if err := s.directive(f); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
		}
	}
	if s.Facts.Name == "" {
		return nil, fmt.Errorf(`the line "node NAME" is missing: which node is the table for?`)
	}
	s.Facts.Primary4, s.Facts.Primary6 = World.Node.Addr(true), World.Node.Addr(false)
	s.Facts.NodeAddrs = service.NewAddrSet(World.Node.V4, World.Node.V6)
	return s, s.check()
}

func (s *Scenario) directive(f []string) (err error) {
	switch f[0] {
	case "node":
		return s.node(f[1:])
	case "detect":
		s.Facts.Settings.Pods, err = prefixes(f[1:])
	case "nodeports":
		switch {
		case slices.Equal(f[1:], []string{"primary"}):
			s.Facts.Settings.NodePorts = primary()
		case slices.Equal(f[1:], []string{"all"}):
			s.Facts.Settings.NodePorts, err = prefixes([]string{"0.0.0.0/0", "::/0"})
		default:
			s.Facts.Settings.NodePorts, err = prefixes(f[1:])
		}
	case "pod-interfaces":
		s.Facts.Settings.PodInterfaces = f[1:]
	case "services":
		s.Facts.Settings.ServiceCIDRs, err = prefixes(f[1:])
	case "api-servers":
		s.Facts.APIServers, err = addrs(f[1:])
	case "balance", "unsupported":
		err = s.balance(f)
	case "dead":
		s.Facts.Dead = f[1:]
	case "ejected":
		err = s.ejected(f[1:])
	case "masquerade-all":
		s.Facts.MasqueradeAll = true
	case "outside":
		s.Facts.Outside = true
		s.Facts.Balances, err = prefixes(f[1:])
	case "refuse-external-ips":
		s.Facts.RefuseExternalIPs = true
	case "hostport":
		err = s.hostPort(f[1:])
	case "packet":
		var p Packet
		if p, err = s.packet(f[1:]); err == nil {
			s.Packets = append(s.Packets, p)
		}
	default:
		err = fmt.Errorf("%q is none of node, detect, pod-interfaces, nodeports, services, api-servers, balance, unsupported, dead, ejected, masquerade-all, outside, refuse-external-ips, hostport, packet", f[0])
	}
	return err
}

func (s *Scenario) node(f []string) error {
	if len(f) == 0 || len(f) > 2 {
		return fmt.Errorf("node: want NAME and perhaps zone=ZONE")
	}
	s.Facts.Name = f[0]
	if len(f) == 2 {
		zone, ok := strings.CutPrefix(f[1], "zone=")
		if !ok {
			return fmt.Errorf("node: %q is not zone=ZONE", f[1])
		}
		s.Facts.Zone = zone
	}
	return nil
}

// balance reads "balance A" and "unsupported A …".
func (s *Scenario) balance(f []string) error {
	if len(f) < 2 || f[0] == "balance" && len(f) > 2 {
		return fmt.Errorf("%s: want the name of an algorithm", f[0])
	}
	for _, name := range f[1:] {
		a, err := service.ParseAlgorithm(name)
		if err != nil {
			return fmt.Errorf("%s: %w", f[0], err)
		}
		if f[0] == "balance" {
			s.Facts.Balance = a
		} else {
			s.Facts.Unsupported |= service.AlgorithmsOf(a)
		}
	}
	return nil
}

// ejected reads "DURATION ADDRESS:PORT …".
func (s *Scenario) ejected(f []string) (err error) {
	if len(f) == 0 {
		return errors.New("ejected: want the first ejection, and endpoints")
	}
	if s.Facts.Ejection, err = service.ParseEjection(f[0]); err != nil {
		return fmt.Errorf("ejected: %w", err)
	}
	for _, text := range f[1:] {
		a, err := netip.ParseAddrPort(text)
		if err != nil {
			return fmt.Errorf("ejected: %w", err)
		}
		s.Facts.Ejected = append(s.Facts.Ejected, a)
	}
	slices.SortFunc(s.Facts.Ejected, netip.AddrPort.Compare)
	return nil
}

// hostPort reads "POD ADDRESS[,ADDRESS] [HOSTIP:]PORT/PROTO -> PORT". Lines of one pod follow each other.
func (s *Scenario) hostPort(f []string) error {
	if len(f) != 5 || f[3] != "->" {
		return fmt.Errorf("hostport: want POD ADDRESS[,ADDRESS] [HOSTIP:]PORT/PROTO -> PORT")
	}
	own, err := addrs(strings.Split(f[1], ","))
	if err != nil {
		return fmt.Errorf("hostport: %w", err)
	}
	at, proto, _ := strings.Cut(f[2], "/")
	port, err := hostPortAt(at)
	if err != nil {
		return fmt.Errorf("hostport: %w", err)
	}
	if port.Proto, err = api.ParseProto(proto); err != nil {
		return fmt.Errorf("hostport: %w", err)
	}
	if port.To, err = portNumber(f[4]); err != nil {
		return fmt.Errorf("hostport: %w", err)
	}
	name := api.Name{Namespace: "default", Name: f[0]}
	if n := len(s.HostPods); n > 0 && s.HostPods[n-1].Name == name {
		s.HostPods[n-1].Ports = append(s.HostPods[n-1].Ports, port)
		return nil
	}
	s.HostPods = append(s.HostPods, &service.HostPod{Name: name, Addrs: own, Ports: []service.HostPort{port}})
	return nil
}

// hostPortAt reads "[HOSTIP:]PORT".
func hostPortAt(text string) (p service.HostPort, err error) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return service.HostPort{Addr: at.Addr(), Port: at.Port()}, nil
	}
	p.Port, err = portNumber(text)
	return p, err
}

func portNumber(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err
}

// packet reads "from=F to=T -> W".
func (s *Scenario) packet(f []string) (Packet, error) {
	p := Packet{Text: strings.Join(f, " ")}
	if len(f) < 4 || f[2] != "->" {
		return p, fmt.Errorf("packet: want from=F to=T -> W")
	}
	from, ok1 := strings.CutPrefix(f[0], "from=")
	to, ok2 := strings.CutPrefix(f[1], "to=")
	if !ok1 || !ok2 {
		return p, fmt.Errorf("packet: want from=F to=T -> W")
	}
	if err := s.to(&p, to); err != nil {
		return p, err
	}
	if err := s.from(&p, from); err != nil {
		return p, err
	}
	want, err := outcome(f[3:])
	p.Want = want
	return p, err
}

func (s *Scenario) to(p *Packet, text string) error {
	addr, proto, ok := strings.Cut(text, "/")
	if !ok {
		return fmt.Errorf("to: %q lacks /tcp, /udp or /sctp", text)
	}
	var err error
	if p.Proto, err = api.ParseProto(proto); err != nil {
		return fmt.Errorf("to: %w", err)
	}
	if rest, ok := strings.CutPrefix(addr, s.Facts.Name+":"); ok {
		addr = World.Node.V4.String() + ":" + rest
	}
	if rest, ok := strings.CutPrefix(addr, "["+s.Facts.Name+"]:"); ok {
		addr = "[" + World.Node.V6.String() + "]:" + rest
	}
	if p.To, err = netip.ParseAddrPort(addr); err != nil {
		return fmt.Errorf("to: %w", err)
	}
	return nil
}

func (s *Scenario) from(p *Packet, name string) error {
	for _, place := range Places() {
		if place.Name == name {
			p.From = From{Place: name, Addr: place.Addr(p.To.Addr().Is4())}
			return nil
		}
	}
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return fmt.Errorf("from: %q is none of pod, pod-remote, node, peer, outside, nor an address", name)
	}
	for k := range s.Endpoints() {
		if k.Addr.Addr() == addr {
			p.From = From{Place: name, Addr: addr}
			return nil
		}
	}
	return fmt.Errorf("from: no slice has the endpoint %v", addr)
}

// outcome reads the part after the arrow.
func outcome(f []string) (Outcome, error) {
	switch {
	case slices.Equal(f, []string{"drop"}):
		return Outcome{Action: service.Drop}, nil
	case slices.Equal(f, []string{"reject"}):
		return Outcome{Action: service.Reject}, nil
	case f[0] == "one-of":
		f = f[1:]
	}
	var o Outcome
	var common Source
	for _, w := range f {
		if text, ok := strings.CutPrefix(w, "source="); ok {
			if err := common.parse(text); err != nil {
				return o, err
			}
			continue
		}
		r := Reach{}
		addr, source, ok := strings.Cut(w, "(")
		if ok {
			if err := r.Source.parse(strings.TrimSuffix(source, ")")); err != nil {
				return o, err
			}
		}
		var err error
		if r.Endpoint, err = netip.ParseAddrPort(addr); err != nil {
			return o, fmt.Errorf("%q is neither drop, reject, source=… nor an endpoint: %w", w, err)
		}
		o.Reaches = append(o.Reaches, r)
	}
	for i := range o.Reaches {
		if o.Reaches[i].Source == AnySource {
			o.Reaches[i].Source = common
		}
	}
	if len(o.Reaches) == 0 {
		return o, fmt.Errorf("packet: nothing behind the arrow")
	}
	o.sort()
	return o, nil
}

// check finds mistakes that no single line shows.
func (s *Scenario) check() error {
	known := s.Endpoints()
	for _, p := range s.Packets {
		for _, r := range p.Want.Reaches {
			if _, ok := known[service.Key{Addr: r.Endpoint, Proto: p.Proto}]; !ok {
				return fmt.Errorf("packet %s: no slice has the endpoint %v/%v", p.Text, r.Endpoint, p.Proto)
			}
		}
	}
	for _, slice := range s.Slices {
		if !slices.ContainsFunc(s.Services, func(svc *service.Service) bool { return svc.Name == slice.Service }) {
			return fmt.Errorf("EndpointSlice %v: there is no Service %v [is its label kubernetes.io/service-name right?]", slice.Name, slice.Service)
		}
	}
	return nil
}

func prefixes(texts []string) ([]netip.Prefix, error) {
	return parseAll(texts, "prefixes", netip.ParsePrefix)
}

func addrs(texts []string) (service.AddrSet, error) {
	all, err := parseAll(texts, "addresses", netip.ParseAddr)
	if err != nil {
		return nil, err
	}
	return service.NewAddrSet(all...), nil
}

// parseAll parses each text. An empty list is an error.
func parseAll[V any](texts []string, what string, parse func(string) (V, error)) (all []V, err error) {
	if len(texts) == 0 {
		return nil, fmt.Errorf("want one or more %s", what)
	}
	for _, t := range texts {
		v, err := parse(t)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// primary returns the prefixes that nodePortAddresses "primary" stands for.
func primary() []netip.Prefix {
	n := World.Node
	return []netip.Prefix{netip.PrefixFrom(n.V4, 32), netip.PrefixFrom(n.V6, 128)}
}
