package path

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/dns/records"
	"github.com/fairway-net/fairway/internal/service"
)

// aim finds the destination's address, port and protocol.
func (p *predictor) aim() error {
	to := p.q.To
	switch {
	case to.Service.Name != "":
		return p.aimService(to.Service)
	case to.Pod.Name != "":
		return p.aimPod(to.Pod)
	case to.Node != "":
		n := p.Nodes[to.Node]
		if n == nil {
			return fmt.Errorf("there is no node %q [kubectl get nodes lists those that are]", to.Node)
		}
		for _, a := range n.Addrs {
			if of(p.srcs, a.Is4()).IsValid() || len(p.srcs) == 0 {
				return p.aimAddr(a)
			}
		}
		return fmt.Errorf("node %s has no address of a family that %s has", to.Node, p.fromText())
	case to.Addr.IsValid():
		return p.aimAddr(to.Addr)
	}
	return p.aimName(to.Name)
}

// aimAddr aims at an address. A Service that has the address gives the port a default.
func (p *predictor) aimAddr(a netip.Addr) error {
	var owner *Service
	for _, s := range p.services() {
		if slices.Contains(slices.Concat(s.ClusterIPs, s.ExternalIPs, s.BalancerIPs, s.ProxyIPs), a) {
			owner = s
			break
		}
	}
	if owner != nil && p.svc == nil && slices.Contains(owner.ClusterIPs, a) {
		p.svc = owner
	}
	port, err := p.portOf(owner, p.q.To.Port)
	if err != nil {
		return err
	}
	p.setDst(a, port)
	return nil
}

// portOf reads a port of a Service: its number, its name, or nothing if there is one only.
func (p *predictor) portOf(s *Service, text string) (uint16, error) {
	p.proto = p.q.To.Proto
	n, err := strconv.ParseUint(text, 10, 16)
	if err == nil && n > 0 {
		if p.proto == 0 {
			p.proto = api.TCP
			if s != nil {
				if i := slices.IndexFunc(s.Ports, func(x ServicePort) bool { return uint64(x.Port.Port) == n }); i >= 0 {
					p.proto = s.Ports[i].Proto
					if slices.ContainsFunc(s.Ports, func(x ServicePort) bool { return uint64(x.Port.Port) == n && x.Proto == api.TCP }) {
						p.proto = api.TCP
					}
				}
			}
		}
		return uint16(n), nil
	}
	if s == nil {
		return 0, fmt.Errorf("%s needs a port [write %s:80]", p.q.To.Asked, p.q.To.Asked)
	}
	var names []string
	for _, x := range s.Ports {
		if text != "" && x.Name == text || text == "" && len(s.Ports) == 1 {
			if p.proto == 0 {
				p.proto = x.Proto
			}
			return x.Port.Port, nil
		}
		names = append(names, portText(x))
	}
	if len(names) == 0 {
		return 0, fmt.Errorf("%v has no ports [write a port behind it: %s:80]", s.Name, p.q.To.Asked)
	}
	return 0, fmt.Errorf("%v has the ports %s [write one behind it: %s:%d]", s.Name, strings.Join(names, ", "), p.q.To.Asked, s.Ports[0].Port.Port)
}

func portText(x ServicePort) string {
	text := fmt.Sprintf("%d/%v", x.Port.Port, x.Proto)
	if x.Name != "" {
		text += " (" + x.Name + ")"
	}
	return text
}

// aimService aims at a Service: at its ClusterIP, or from outside at the address of its load balancer; at the endpoints of
// a headless Service; or at the name of an ExternalName.
func (p *predictor) aimService(name api.Name) error {
	s := p.Services[name]
	if s == nil {
		p.step(Step{Kind: KindDNS, State: Unresolved, Text: "no Service " + name.String(), Reason: reason(NoSuchService, "there is no such Service")})
		p.explainMissing(name)
		return nil
	}
	p.svc, p.asked = s, s
	p.out.To.Service = s.Name.String()
	switch {
	case s.ExternalName != "":
		return p.aimName(s.ExternalName + ".")
	case s.Headless:
		return p.aimEndpoints(s)
	}
	port, err := p.portOf(s, p.q.To.Port)
	if err != nil {
		return err
	}
	addrs := s.ClusterIPs
	if p.q.From.Kind == "Outside" { // what clients outside use comes first
		addrs = slices.Concat(s.BalancerIPs, s.ExternalIPs, s.ClusterIPs)
	}
	for _, a := range addrs {
		if of(p.srcs, a.Is4()).IsValid() || len(p.srcs) == 0 {
			p.setDst(a, port)
			return nil
		}
	}
	if len(s.ClusterIPs) > 0 {
		p.setDst(s.ClusterIPs[0], port) // travel says that the families differ
		return nil
	}
	return fmt.Errorf("Service %v has no ClusterIP", name)
}

// aimEndpoints aims at an endpoint of a headless Service, as its name does.
func (p *predictor) aimEndpoints(s *Service) error {
	port, err := p.portOf(s, p.q.To.Port)
	if err != nil {
		return err
	}
	var first netip.Addr
	for _, slice := range p.Slices[s.Name] {
		for i, e := range slice.Endpoints {
			c := Candidate{Addr: e.Addr.String(), Pod: slice.Pods.At(i), Node: e.Node, Kept: e.Ready}
			if !e.Ready {
				c.Reason = service.NotReady.String()
			}
			p.out.Candidates = append(p.out.Candidates, c)
			if e.Ready && (!first.IsValid() || e.Addr.Less(first)) && (of(p.srcs, e.Addr.Is4()).IsValid() || len(p.srcs) == 0) {
				first = e.Addr
			}
		}
	}
	slices.SortFunc(p.out.Candidates, func(a, b Candidate) int { return strings.Compare(a.Addr, b.Addr) })
	if !first.IsValid() {
		p.step(Step{Kind: KindDNS, State: Unresolved, Text: s.Name.String() + " is headless", Detail: "its name has no address", Reason: reason(NoEndpoints, "no endpoint is ready")})
		p.explainNoEndpoints(s, nil)
		return nil
	}
	kept := 0
	for _, c := range p.out.Candidates {
		if c.Kept {
			kept++
		}
	}
	for i := range p.out.Candidates {
		if c := &p.out.Candidates[i]; c.Kept {
			c.Share, c.Followed = 1/float64(kept), c.Addr == first.String()
		}
	}
	p.step(Step{Kind: KindService, State: Accepted, Text: "headless: its names are its pods", Detail: fmt.Sprintf("one of %d", kept), Refs: []Ref{{API: "Service", NS: s.Name.Namespace, Name: s.Name.Name}}})
	p.setDst(first, port)
	p.explainHeadless(s, port)
	return nil
}

func (p *predictor) aimPod(name api.Name) error {
	pod := p.Pods[name]
	if pod == nil {
		return fmt.Errorf("there is no pod %v [kubectl get pods -n %s lists those that are]", name, name.Namespace)
	}
	port := p.q.To.Port
	for _, c := range pod.Containers {
		for _, x := range c.Ports {
			if (port == "" || port == x.Name) && x.Name+port != "" || port == "" {
				port = strconv.Itoa(int(x.Number))
				if p.q.To.Proto == 0 {
					p.q.To.Proto = x.Proto
				}
			}
		}
	}
	n, err := p.portOf(nil, port)
	if err != nil {
		return err
	}
	for _, a := range pod.addrs() {
		if of(p.srcs, a.Is4()).IsValid() || len(p.srcs) == 0 {
			p.setDst(a, n)
			return nil
		}
	}
	return fmt.Errorf("pod %v has no address of a family that %s has [its phase is %s]", name, p.fromText(), pod.Phase)
}

// aimName resolves a name as the sender does.
func (p *predictor) aimName(name string) error {
	full := strings.HasSuffix(name, ".")
	s := Step{Kind: KindDNS, State: Accepted, Text: strings.TrimSuffix(name, ".")}
	inZone := strings.HasSuffix("."+strings.Trim(name, "."), "."+p.domain())
	if p.pod == nil || !p.pod.Resolver.Cluster {
		s.Detail = p.fromText() + "'s own resolver answers"
		if inZone || strings.Count(name, ".") < 2 && p.nameOfService(name) != nil {
			s.State, s.Reason = Unresolved, reason(OtherResolver, "another resolver")
			p.step(s)
			p.finding(OtherResolver, Fatal, "use the address, or ask from a pod with dnsPolicy ClusterFirst", "%s does not ask the cluster's DNS, so %s has no address there.", p.fromText(), name)
			return nil
		}
		return p.outside(s, name)
	}
	if p.checkDNS(&s) {
		return nil
	}
	tried := []string{name}
	if !full {
		tried = tried[:0]
		for _, search := range p.pod.Resolver.Search {
			tried = append(tried, name+"."+search)
		}
		if strings.Count(name, ".") >= p.pod.Resolver.Ndots {
			tried = append([]string{name}, tried...)
		} else {
			tried = append(tried, name)
		}
	}
	cluster := p.records()
	for i, n := range tried {
		for _, kind := range []string{"A", "AAAA"} {
			if !of(p.srcs, kind == "A").IsValid() {
				continue
			}
			found, why := records.Resolve(cluster, records.Question{Name: n, Type: kind})
			if i2 := slices.IndexFunc(found, func(r records.Record) bool { return r.Type == kind }); i2 >= 0 {
				if !full && n != name {
					s.Detail = fmt.Sprintf("search %d of %d, ndots %d", 1+slices.Index(p.pod.Resolver.Search, strings.TrimPrefix(n, name+".")), len(p.pod.Resolver.Search), p.pod.Resolver.Ndots)
				}
				s.Text = fmt.Sprintf("%s → %s", strings.TrimSuffix(n, "."), found[i2].Data)
				p.step(s)
				return p.aimFound(n, netip.MustParseAddr(found[i2].Data))
			}
			if why == records.AliasOutside {
				return p.outside(s, name)
			}
			if why == records.OtherZone && n == name && strings.Contains(strings.Trim(name, "."), ".") && !p.looksLocal(name) {
				if i > 0 {
					p.finding(ExtraQuestions, Info, "write the dot at the end where a program allows it", "%s is asked %d times; %q once.", name, i+1, name+".")
				}
				return p.outside(s, name)
			}
		}
	}
	s.State, s.Detail, s.Reason = Unresolved, "NXDOMAIN", reason(NoSuchName, "no name of the cluster")
	p.step(s)
	p.explainNoName(name)
	return nil
}

// outside ends at a name that an upstream resolver answers.
func (p *predictor) outside(s Step, name string) error {
	if p.pod != nil && p.pod.Resolver.Cluster {
		s.Detail = "an upstream of the cluster's DNS answers"
	}
	if !strings.Contains(strings.Trim(name, "."), ".") {
		s.State, s.Detail, s.Reason = Unresolved, "NXDOMAIN", reason(NoSuchName, "no name of the cluster")
		p.step(s)
		p.explainNoName(name)
		return nil
	}
	p.step(s)
	p.ended = true // the address is the upstream's to say
	p.out.NotLooked = append(p.out.NotLooked, "the address of "+strings.Trim(name, "."))
	return nil
}

// aimFound aims at the address of a name. The name's Service gives the port a default.
func (p *predictor) aimFound(name string, a netip.Addr) error {
	var s *Service
	if rest, ok := strings.CutSuffix(strings.Trim(name, "."), ".svc."+p.domain()); ok {
		labels := strings.Split(rest, ".")
		if n := len(labels); n > 1 {
			s = p.Services[api.Name{Namespace: labels[n-1], Name: labels[n-2]}]
		}
	}
	if s != nil && s.ExternalName == "" {
		p.svc, p.asked = s, s
		p.out.To.Service = s.Name.String()
		if s.Headless {
			return p.aimEndpoints(s)
		}
	}
	port, err := p.portOf(s, p.q.To.Port)
	if err != nil {
		return err
	}
	p.setDst(a, port)
	return nil
}

// records returns the cluster as its DNS has it.
func (p *predictor) records() records.Cluster {
	c := records.Cluster{Zone: p.domain()}
	for _, s := range p.services() {
		if !slices.Contains(c.Namespaces, s.Name.Namespace) {
			c.Namespaces = append(c.Namespaces, s.Name.Namespace)
		}
		r := records.Service{Namespace: s.Name.Namespace, Name: s.Name.Name, ClusterIPs: s.ClusterIPs, ExternalName: s.ExternalName}
		for _, x := range s.Ports {
			r.Ports = append(r.Ports, records.Port{Name: x.Name, Proto: x.Proto.String(), Number: x.Port.Port})
		}
		for _, slice := range p.Slices[s.Name] {
			var ports []records.Port
			for _, x := range slice.Ports {
				ports = append(ports, records.Port{Name: x.Name, Proto: x.Proto.String(), Number: x.Port})
			}
			for i, e := range slice.Endpoints {
				r.Endpoints = append(r.Endpoints, records.Endpoint{Address: e.Addr, Hostname: slice.Pods.At(i), Ready: e.Ready, Ports: ports})
			}
		}
		c.Services = append(c.Services, r)
	}
	return c
}
