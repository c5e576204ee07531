package path

import (
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/text"
)

// serviceName returns the namespace and the name that a person means by SERVICE, SERVICE.NAMESPACE or more labels.
func (p *predictor) serviceName(name string) api.Name {
	name = strings.TrimSuffix(strings.TrimSuffix(strings.Trim(name, "."), "."+p.domain()), ".svc")
	first, rest, given := strings.Cut(name, ".")
	n := api.Name{Name: first}
	if p.pod != nil {
		n.Namespace = p.pod.Name.Namespace
	}
	if given {
		n.Namespace, _, _ = strings.Cut(rest, ".")
	}
	return n
}

// nameOfService returns the Service of a name, in the namespace of the name or in another.
func (p *predictor) nameOfService(name string) *Service {
	n := p.serviceName(name)
	if s := p.Services[n]; s != nil {
		return s
	}
	for _, s := range p.services() {
		if s.Name.Name == n.Name {
			return s
		}
	}
	return nil
}

// looksLocal reports whether a name with dots names a Service or is in the cluster's zone.
func (p *predictor) looksLocal(name string) bool {
	name = strings.Trim(name, ".")
	if strings.HasSuffix(name, ".svc") || strings.HasSuffix(name, ".svc."+p.domain()) {
		return true
	}
	n := p.serviceName(name)
	return strings.Count(name, ".") == 1 && slices.ContainsFunc(p.services(), func(s *Service) bool { return s.Name.Namespace == n.Namespace })
}

// explainNoName finds the cause of a name without an address.
func (p *predictor) explainNoName(name string) { p.explainMissing(p.serviceName(name)) }

// explainMissing finds the Service that a person may have meant.
func (p *predictor) explainMissing(n api.Name) {
	if s := p.Services[n]; s != nil {
		p.explainNoEndpoints(s, nil)
		return
	}
	var here, elsewhere []string
	for _, s := range p.services() {
		switch {
		case s.Name.Namespace == n.Namespace:
			here = append(here, s.Name.Name)
		case s.Name.Name == n.Name:
			elsewhere = append(elsewhere, s.Name.Namespace)
		}
	}
	near := text.Closest(n.Name, here)
	switch {
	case len(elsewhere) > 0 && p.pod != nil:
		p.finding(OtherNamespace, Fatal, "", "%s is in namespace %s, the pod in %s: say %s.%s.", n.Name, strings.Join(elsewhere, ", "), p.pod.Name.Namespace, n.Name, elsewhere[0])
	case len(elsewhere) > 0:
		p.finding(OtherNamespace, Fatal, "", "%s is in namespace %s, not in %s.", n.Name, strings.Join(elsewhere, ", "), n.Namespace)
	case near != "":
		p.finding(NoSuchService, Fatal, "", "No Service %s in %s (NXDOMAIN); %s exists.", n.Name, n.Namespace, near)
	default:
		p.finding(NoSuchService, Fatal, "kubectl get services -n "+n.Namespace, "No Service %s in %s (NXDOMAIN).", n.Name, n.Namespace)
	}
}

// checkDNS looks whether the pod's questions reach the cluster's DNS. It reports whether they do not.
func (p *predictor) checkDNS(s *Step) bool {
	i := slices.IndexFunc(p.services(), func(s *Service) bool { return s.ClusterDNS })
	if i < 0 {
		return false
	}
	dns := p.services()[i]
	var ends []terminus
	for _, slice := range p.Slices[dns.Name] {
		for _, x := range slice.Ports {
			for j := range slice.Endpoints {
				if e := &slice.Endpoints[j]; x.Proto == api.UDP && (e.Ready || e.Serving && e.Terminating) && of(p.srcs, e.Addr.Is4()).IsValid() {
					ends = append(ends, p.endpointAt(addrPort(e.Addr, x.Port)))
				}
			}
		}
	}
	ip := ""
	if len(dns.ClusterIPs) > 0 {
		ip = dns.ClusterIPs[0].String()
	}
	if len(ends) == 0 {
		s.State, s.Detail, s.Reason = Unresolved, "nobody answers at "+ip, reason(NoDNS, "the cluster's DNS has no endpoint")
		p.step(*s)
		p.finding(NoDNS, Fatal, "kubectl -n "+dns.Name.Namespace+" get pods -l k8s-app=kube-dns", "%s has no endpoint: no name resolves; %s answers nobody.", dns.Name.Name, ip)
		return true
	}
	was := p.proto
	p.proto = api.UDP
	defer func() { p.proto = was }()
	p.src = of(p.srcs, ends[0].addr.Addr().Is4())
	for _, end := range ends {
		d := p.judge(end, p.src)
		if d.text == "" {
			return false
		}
		if end == ends[len(ends)-1] {
			s.State, s.Detail, s.Reason = Unresolved, "denied by "+d.text, reason(DNSDenied, d.text)
			s.Refs = policyRefs(d)
			p.step(*s)
			side := networkpolicy.Ingress
			if d.egress {
				side = networkpolicy.Egress
			}
			p.finding(DNSDenied, Fatal, "allow "+side.String()+" to UDP and TCP "+portNumber(end)+" of k8s-app=kube-dns in kube-system", "NetworkPolicy %s allows no UDP %s: no name resolves.", d.text, portNumber(end))
			return true
		}
	}
	return false
}
