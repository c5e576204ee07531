package path

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

// A Code names a cause.
type Code string

// The codes of findings and reasons.
const (
	NoSuchService   Code = "NoSuchService"
	NoSuchName      Code = "NoSuchName"
	OtherNamespace  Code = "OtherNamespace"
	OtherResolver   Code = "OtherResolver"
	OtherFamily     Code = "OtherFamily"
	SelectorMisses  Code = "SelectorMisses"
	NoSelector      Code = "NoSelector"
	NoPortName      Code = "NoPortName"
	NoneReady       Code = "NoneReady"
	NoneRuns        Code = "NoneRuns"
	NoEndpoints     Code = "NoEndpoints"
	NoSuchPort      Code = "NoSuchPort"
	OtherProtocol   Code = "OtherProtocol"
	LocalPolicy     Code = "LocalPolicy"
	ZoneHint        Code = "ZoneHint"
	ZeroWeight      Code = "ZeroWeight"
	OnlyTerminating Code = "OnlyTerminating"
	SourceRange     Code = "SourceRange"
	ProxyMode       Code = "ProxyMode"
	NodePortAddress Code = "NodePortAddress"
	SameAddress     Code = "SameAddress"
	HeadlessPort    Code = "HeadlessPort"
	PolicyDenies    Code = "PolicyDenies"
	DNSDenied       Code = "DNSDenied"
	NoDNS           Code = "NoDNS"
	ExtraQuestions  Code = "ExtraQuestions"
	NoSuchPod       Code = "NoSuchPod"
	NoPodCIDR       Code = "NoPodCIDR"
	Unassigned      Code = "UnassignedClusterIP"
	Excluded        Code = "Excluded"
	NotAnnounced    Code = "NotAnnounced"
)

func addrPort(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func portNumber(t terminus) string { return strconv.Itoa(int(t.addr.Port())) }

// serviceCode is the code of a decision's reason.
func serviceCode(r service.Reason) Code {
	switch r {
	case service.NoUsableEndpoints:
		return LocalPolicy
	case service.SourceNotAllowed:
		return SourceRange
	case service.NoSuchPort:
		return NoSuchPort
	case service.UnassignedClusterIP:
		return Unassigned
	}
	return NoEndpoints
}

// explainService finds the cause of a refusal or a drop at a Service's address.
func (p *predictor) explainService(d service.Decision) {
	s := p.svc
	switch d.Reason {
	case service.NoSuchPort:
		p.explainPort(s)
	case service.SourceNotAllowed:
		p.finding(SourceRange, Fatal, "spec.loadBalancerSourceRanges of "+s.Name.String(), "%v is in none of %s: dropped.", p.src, prefixes(d.Frontend.Sources))
	case service.NoUsableEndpoints:
		p.explainLocal(d)
	case service.NoEndpoints:
		p.explainNoEndpoints(s, d.Frontend)
	case service.UnassignedClusterIP:
		p.finding(Unassigned, Fatal, "kubectl get services -A", "No Service has %v, which is in the range of ClusterIPs.", p.dst.Addr())
	}
}

func prefixes(all []netip.Prefix) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ", ")
}

// explainPort explains a port that the Service does not have.
func (p *predictor) explainPort(s *Service) {
	if s == nil {
		p.finding(NoSuchPort, Fatal, "", "No Service has port %d/%v of %v.", p.dst.Port(), p.proto, p.dst.Addr())
		return
	}
	var all []string
	for _, x := range s.Ports {
		if x.Port.Port == p.dst.Port() && x.Proto != p.proto {
			p.finding(OtherProtocol, Fatal, "", "%s's port %d is %v; %v is refused.", s.Name.Name, p.dst.Port(), x.Proto, p.proto)
			return
		}
		all = append(all, strings.Replace(portText(x), "/TCP", "", 1))
	}
	p.finding(NoSuchPort, Fatal, "", "%s has no port %d/%v, it has %s; %s refuses.", s.Name.Name, p.dst.Port(), p.proto, strings.Join(all, ", "), p.node.Name)
}

// explainLocal explains a drop because the endpoints are on other nodes.
func (p *predictor) explainLocal(d service.Decision) {
	count := map[string]int{}
	for _, c := range p.out.Candidates {
		if c.Reason == service.OtherNode.String() {
			count[c.Node]++
		}
	}
	nodes := make([]string, 0, len(count))
	for n := range count {
		nodes = append(nodes, n)
	}
	sort.Strings(nodes)
	var texts []string
	for _, n := range nodes {
		texts = append(texts, fmt.Sprintf("%d %s on %s", count[n], map[bool]string{true: "is", false: "are"}[count[n] == 1], n))
	}
	if d.Packet.Internal() {
		p.finding(LocalPolicy, Fatal, "spec.internalTrafficPolicy of "+p.svc.Name.String(), "internalTrafficPolicy is Local, and no endpoint is on %s: dropped; %s.", p.node.Name, strings.Join(texts, ", "))
		return
	}
	verb := "answer"
	if len(nodes) == 1 {
		verb = "answers"
	}
	p.finding(LocalPolicy, Fatal, "externalTrafficPolicy is Local: send to a node with an endpoint", "%s has no endpoint, so it drops; %s %s.", p.node.Name, strings.Join(nodes, " and "), verb)
}

// matching returns the pods that a Service selects.
func (p *predictor) matching(s *Service) (all []*Pod) {
	for _, pod := range p.pods() {
		if pod.Name.Namespace != s.Name.Namespace || pod.Finished {
			continue
		}
		if matches(s.Selector, pod.Labels) {
			all = append(all, pod)
		}
	}
	return all
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func selectorText(m map[string]string) string {
	var all []string
	for k, v := range m {
		all = append(all, k+"="+v)
	}
	sort.Strings(all)
	return strings.Join(all, ",")
}

// explainNoEndpoints explains why a Service has no endpoint that serves. f is the frontend of the packet; nil: all ports.
func (p *predictor) explainNoEndpoints(s *Service, f *service.Frontend) {
	if len(s.Selector) == 0 {
		if len(p.Slices[s.Name]) == 0 {
			p.finding(NoSelector, Fatal, "write spec.selector, or an EndpointSlice with the label kubernetes.io/service-name="+s.Name.Name, "%s has no selector and nobody wrote EndpointSlices.", s.Name.Name)
		} else {
			p.finding(NoEndpoints, Fatal, "kubectl get endpointslices -n "+s.Name.Namespace+" -l kubernetes.io/service-name="+s.Name.Name, "No endpoint of %s is ready in its EndpointSlices, which a program other than Kubernetes writes.", s.Name.Name)
		}
		return
	}
	all := p.matching(s)
	if len(all) == 0 {
		p.explainSelector(s)
		return
	}
	if p.explainPortName(s, f, all) {
		return
	}
	running := slices.ContainsFunc(all, func(x *Pod) bool { return x.runs() })
	why := ""
	for _, pod := range all {
		if text := pod.Unready(); text != "" && why == "" {
			why = ": " + pod.Name.Name + " " + text
			if strings.HasPrefix(text, "its ") {
				why = ": " + pod.Name.Name + "'s " + strings.TrimPrefix(text, "its ")
			}
		}
	}
	advice := "kubectl describe pod -n " + s.Name.Namespace + " " + all[0].Name.Name
	pods := plural(len(all), "pod matches", "pods match")
	if !running {
		p.finding(NoneRuns, Fatal, advice, "%s, none runs%s.", pods, why)
		return
	}
	p.finding(NoneReady, Fatal, advice, "%s, none is ready%s.", pods, why)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// explainSelector finds pods with nearly the labels of a selector.
func (p *predictor) explainSelector(s *Service) {
	near := map[string]int{}
	for _, pod := range p.pods() {
		if pod.Name.Namespace != s.Name.Namespace || pod.Finished {
			continue
		}
		var differs []string
		close := true
		for k, v := range s.Selector {
			has, ok := pod.Labels[k]
			switch {
			case ok && has == v:
			case ok && text.Closest(v, []string{has}) != "":
				differs = append(differs, k+"="+has)
			default:
				close = false
			}
		}
		if close {
			sort.Strings(differs)
			near[strings.Join(differs, ",")]++
		}
	}
	best := ""
	for t, n := range near {
		if best == "" || n > near[best] || n == near[best] && t < best {
			best = t
		}
	}
	advice := "kubectl get pods -n " + s.Name.Namespace + " --show-labels"
	if best == "" {
		p.finding(SelectorMisses, Fatal, advice, "Nobody answers: selector %s matches no pod.", selectorText(s.Selector))
		return
	}
	p.finding(SelectorMisses, Fatal, advice, "Nobody answers: selector %s matches no pod; %d %s %s.", selectorText(s.Selector), near[best], map[bool]string{true: "has", false: "have"}[near[best] == 1], best)
}

// explainPortName explains a targetPort that no pod names.
func (p *predictor) explainPortName(s *Service, f *service.Frontend, all []*Pod) bool {
	for _, x := range s.Ports {
		if x.TargetName == "" || f != nil && x.Name != f.Service.Port {
			continue
		}
		named := func(pod *Pod) bool {
			return slices.ContainsFunc(pod.Pod.Ports, func(n api.NamedPort) bool { return n.Name == x.TargetName && n.Proto == x.Proto })
		}
		if slices.ContainsFunc(all, named) {
			continue
		}
		var has []string
		for _, n := range all[0].Pod.Ports {
			has = append(has, fmt.Sprintf("%s %d", n.Name, n.Number))
		}
		names := "no named port"
		if len(has) > 0 {
			names = strings.Join(has, ", ")
		}
		p.finding(NoPortName, Fatal, "spec.ports[].targetPort of "+s.Name.String(), "targetPort %s is no port name of %s (it has %s).", x.TargetName, all[0].Name.Name, names)
		return true
	}
	return false
}

// runs reports whether a container of the pod runs.
func (p *Pod) runs() bool {
	return p.Phase == "Running" && slices.ContainsFunc(p.Containers, func(c Container) bool { return c.Waiting == "" })
}

// Unready says why a pod is not ready, or "".
func (p *Pod) Unready() string {
	for _, c := range p.Containers {
		switch {
		case c.Waiting != "" && c.Exited:
			return fmt.Sprintf("%s, exit %d", c.Waiting, c.ExitCode)
		case c.Waiting != "":
			return c.Waiting
		}
	}
	for _, c := range p.Containers {
		if !c.Ready && c.HasProbe {
			return "its readiness probe fails (" + c.Probe + ")"
		}
	}
	if !p.Ready && p.Phase != "Running" {
		return "is " + cmp.Or(p.Phase, "Pending")
	}
	return ""
}

// hints returns the hints of an endpoint.
func (p *predictor) hints(x service.Explanation, zones bool) string {
	for _, slice := range p.Slices[x.Service.Name] {
		for _, e := range slice.Endpoints {
			if slice.Name == x.Slice && e.Addr == x.Addr.Addr() {
				if zones {
					return strings.Join(e.ZoneHints, ", ")
				}
				return strings.Join(e.NodeHints, ", ")
			}
		}
	}
	return ""
}

// explainChoice explains endpoints that are left out although they are ready.
func (p *predictor) explainChoice() {
	kept, terminating := 0, ""
	for _, c := range p.out.Candidates {
		if c.Kept {
			kept++
			if p.terminating(c) {
				terminating = cmp.Or(c.Pod, c.Addr)
			}
		}
	}
	if terminating != "" {
		p.finding(OnlyTerminating, Warning, "", "None is ready; %s is terminating, still serves, and gets it.", terminating)
	}
	for _, c := range p.out.Candidates {
		name := cmp.Or(c.Pod, c.Addr)
		switch {
		case strings.HasPrefix(c.Reason, "its zone hint is "), strings.HasPrefix(c.Reason, "its hint is "):
			p.finding(ZoneHint, Info, "spec.trafficDistribution of "+p.svc.Name.String(), "%s is left out: %s.", name, strings.Replace(c.Reason, "zone ", "", 1))
		case c.Reason == service.ZeroWeight.String():
			p.finding(ZeroWeight, Info, "", "%s has weight 0: no new connections.", name)
		}
	}
}

// terminating reports whether a candidate's endpoint is terminating.
func (p *predictor) terminating(c Candidate) bool {
	for _, slice := range p.Slices[p.svc.Name] {
		for i, e := range slice.Endpoints {
			a, err := netip.ParseAddrPort(c.Addr)
			if err == nil && a.Addr() == e.Addr && slice.Pods.At(i) == c.Pod && e.Terminating && !e.Ready {
				return true
			}
		}
	}
	return false
}

// explainAddress explains an address of a Service that no node serves.
func (p *predictor) explainAddress() {
	a := p.dst.Addr()
	for _, s := range p.services() {
		if slices.Contains(s.ProxyIPs, a) {
			p.finding(ProxyMode, Info, "", "%v has ipMode Proxy: nodes do not serve it.", a)
			return
		}
	}
	for _, s := range p.services() {
		for _, x := range s.Ports {
			n := p.nodeAt(a)
			if n != nil && x.NodePort == p.dst.Port() && x.Proto == p.proto && !n.Facts.Settings.ServesNodePorts(a) {
				p.finding(NodePortAddress, Fatal, "--nodeport-addresses of the agents", "%s serves NodePorts on %s, not on %v.", n.Name, hosts(n.Facts.Settings.NodePorts, a.Is4()), a)
				p.step(Step{Node: n.Name, Kind: KindService, State: Refused, Text: "no NodePort at " + a.String(), Detail: "the node's own port", Reason: reason(NodePortAddress, "another address serves NodePorts")})
				return
			}
		}
	}
}

func hosts(all []netip.Prefix, is4 bool) string {
	var texts []string
	for _, n := range all {
		switch {
		case n.Addr().Is4() != is4:
		case n.IsSingleIP():
			texts = append(texts, n.Addr().String())
		default:
			texts = append(texts, n.String())
		}
	}
	return cmp.Or(strings.Join(texts, ", "), "no address")
}

// explainHeadless explains a port that the pods of a headless Service do not have.
func (p *predictor) explainHeadless(s *Service, port uint16) {
	for _, x := range s.Ports {
		if x.Port.Port != port || x.Proto != p.proto {
			continue
		}
		for _, slice := range p.Slices[s.Name] {
			for _, y := range slice.Ports {
				if y.Name == x.Name && y.Proto == x.Proto && y.Port != port {
					p.finding(HeadlessPort, Fatal, "", "%s is headless: its names are pods, so use their port %d.", s.Name.Name, y.Port)
					p.step(Step{Node: p.nodeName(), Kind: KindSocket, State: Refused, Text: "no port of its pods", Detail: fmt.Sprintf("they listen on %d", y.Port), Reason: reason(HeadlessPort, "the pods' port counts")})
					return
				}
			}
		}
	}
}

func (p *predictor) nodeName() string {
	if p.node == nil {
		return ""
	}
	return p.node.Name
}

// explainName explains what does not depend on the way: another Service that has the asked one's address.
func (p *predictor) explainName() {
	if !p.dst.IsValid() {
		return
	}
	a := p.dst.Addr()
	var all []*Service
	for _, s := range p.services() {
		has := slices.Contains(s.ExternalIPs, a) || slices.Contains(s.BalancerIPs, a)
		if has && slices.ContainsFunc(s.Ports, func(x ServicePort) bool { return x.Port.Port == p.dst.Port() && x.Proto == p.proto }) {
			all = append(all, s)
		}
	}
	if len(all) < 2 || p.svc == nil {
		return
	}
	for _, s := range all {
		if s != p.svc {
			p.finding(SameAddress, Warning, "give the Services different addresses, or different ports", "%v is %v's (older); %v does not get it.", p.dst, p.svc.Name, s.Name)
		}
	}
}

// explainPolicy names the policy that denies the packet.
func (p *predictor) explainPolicy(end terminus, d denial) {
	if p.svc != nil {
		for _, c := range p.out.Candidates {
			if c.Kept && c.Denied == "" {
				return // another endpoint gets it
			}
		}
	}
	if d.egress {
		p.finding(PolicyDenies, Fatal, "fairway policy "+p.pod.Name.String()+" --to "+end.addr.Addr().String()+" --port "+portNumber(end), "NetworkPolicy %s selects %s and allows no egress to %s port %s.", d.text, p.pod.Name.Name, end.name(), portNumber(end))
		return
	}
	from := p.fromText()
	p.finding(PolicyDenies, Fatal, "fairway policy "+end.pod.Name.String()+" --from "+cmp.Or(p.podText(), addrText(p.src))+" --port "+portNumber(end), "NetworkPolicy %s selects %s and allows nothing from %s on port %s.", d.text, end.name(), from, portNumber(end))
}

func (p *predictor) podText() string {
	if p.pod == nil {
		return ""
	}
	return p.pod.Name.String()
}

func (p *predictor) explainNoPod(end terminus) {
	p.finding(NoSuchPod, Fatal, "kubectl get pods -A -o wide", "No pod has %v: it is in %v, the range of %s's pods.", end.addr.Addr(), end.cidr, end.node)
}

// explainDenied names a policy that denies packets to some of the endpoints.
func (p *predictor) explainDenied(denied, kept int) {
	for _, c := range p.out.Candidates {
		if c.Denied != "" {
			p.finding(PolicyDenies, Fatal, "fairway policy "+p.svc.Name.Namespace+"/"+c.Pod, "NetworkPolicy %s denies %d of %d endpoints, such as %s.", c.Denied, denied, kept, cmp.Or(c.Pod, c.Addr))
			return
		}
	}
}
