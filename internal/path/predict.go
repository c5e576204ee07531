package path

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A predictor answers one question.
type predictor struct {
	*Cluster
	q    Question
	out  *Path
	pod  *Pod         // that sends; nil: another place
	srcs []netip.Addr // of the sender; empty: not known
	// node is the first node that sees the packet; nil: not known yet.
	node *Node
	// origin is the node of a sender in the cluster.
	origin *Node
	src    netip.Addr
	dst    netip.AddrPort
	proto  api.Proto
	svc    *Service // that the question names or whose address it has
	asked  *Service // that the question names
	ended  bool
}

// Predict returns the way of a packet. An error means that the question makes no sense in this cluster: its sender or a
// port is not there.
func Predict(c *Cluster, q Question) (*Path, error) {
	p := &predictor{Cluster: c, q: q, out: &Path{
		Version: Version, To: Target{Asked: q.To.Asked}, Mode: map[string]string{},
		Steps: []Step{}, Candidates: []Candidate{}, Reply: []Step{}, Findings: []Finding{}, NotLooked: []string{},
	}}
	if err := p.start(); err != nil {
		return nil, err
	}
	p.origin = p.node
	if err := p.aim(); err != nil {
		return nil, err
	}
	var first *Node
	if !p.ended {
		p.choosePlace()
		if first = p.node; !p.ended {
			p.travel()
		}
	}
	p.explainName()
	for i := range p.out.Steps {
		p.out.Steps[i].N = i + 1
	}
	p.out.From.IP = addrText(p.src)
	p.prove(first)
	p.conclude()
	return p.out, nil
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// conclude sets the verdict from the last step.
func (p *predictor) conclude() {
	n := len(p.out.Steps)
	if n == 0 {
		return
	}
	v := Verdict{Predicted: p.out.Steps[n-1].State, Step: n}
	kept, denied := 0, 0
	for _, c := range p.out.Candidates {
		if c.Kept {
			kept++
		}
		if c.Denied != "" {
			denied++
		}
	}
	if (v.Predicted == Delivered || v.Predicted == Dropped) && denied > 0 && denied < kept {
		v.Predicted = Sometimes
		p.explainDenied(denied, kept)
	}
	p.out.Verdict = v
}

// step adds a step. A state other than Accepted is the end.
func (p *predictor) step(s Step) *Step {
	p.ended = p.ended || s.State != Accepted
	p.out.Steps = append(p.out.Steps, s)
	return &p.out.Steps[len(p.out.Steps)-1]
}

func (p *predictor) finding(code Code, level Level, advice, format string, args ...any) {
	f := Finding{Code: code, Level: level, Text: fmt.Sprintf(format, args...), Advice: advice}
	if !slices.ContainsFunc(p.out.Findings, func(o Finding) bool { return o.Code == f.Code && o.Text == f.Text }) {
		p.out.Findings = append(p.out.Findings, f)
	}
}

// start finds the sender.
func (p *predictor) start() error {
	f := p.q.From
	switch f.Kind {
	case "Pod":
		p.pod = p.Pods[f.Pod]
		if p.pod == nil {
			return fmt.Errorf("there is no pod %v [kubectl get pods -n %s lists those that are]", f.Pod, f.Pod.Namespace)
		}
		p.srcs = p.pod.addrs()
		if len(p.srcs) == 0 || p.pod.Node == "" {
			return fmt.Errorf("pod %v has no address, so it sends nothing [its phase is %s: kubectl describe pod -n %s %s]", f.Pod, cmp.Or(p.pod.Phase, "unknown"), f.Pod.Namespace, f.Pod.Name)
		}
		p.node = p.Nodes[p.pod.Node]
		if p.node == nil {
			return fmt.Errorf("pod %v is on node %q, which is not known [kubectl get nodes]", f.Pod, p.pod.Node)
		}
		p.out.From = End{Kind: "Pod", NS: f.Pod.Namespace, Name: f.Pod.Name, Node: p.pod.Node}
	case "Node":
		p.node = p.Nodes[f.Node]
		if p.node == nil {
			return fmt.Errorf("there is no node %q [kubectl get nodes lists those that are]", f.Node)
		}
		p.srcs = p.node.Addrs
		p.out.From = End{Kind: "Node", Name: f.Node, Node: f.Node}
	default:
		if f.Addr.IsValid() {
			p.srcs = []netip.Addr{f.Addr.Unmap()}
		}
		p.out.From = End{Kind: "Outside"}
	}
	return nil
}

// fromNode reports whether the packet is a node's own.
func (p *predictor) fromNode() bool {
	return p.q.From.Kind == "Node" || p.pod != nil && p.pod.HostNetwork
}

// ownPacket reports whether the packet comes from the current node itself.
func (p *predictor) ownPacket() bool { return p.fromNode() && p.node == p.origin }

// setDst sets the destination, and the sender's address of its family.
func (p *predictor) setDst(a netip.Addr, port uint16) {
	p.dst = netip.AddrPortFrom(a, port)
	p.src = of(p.srcs, a.Is4())
	if p.q.From.Kind == "Outside" && len(p.srcs) == 0 { // documentation's addresses stand for any
		p.src = netip.MustParseAddr("2001:db8::1")
		if a.Is4() {
			p.src = netip.MustParseAddr("198.51.100.1")
		}
	}
	p.out.To.Key = service.Key{Addr: p.dst, Proto: p.proto}.String()
}

// choosePlace finds the node that gets packets from outside.
func (p *predictor) choosePlace() {
	if p.node != nil {
		return
	}
	if p.node = p.nodeAt(p.dst.Addr()); p.node != nil {
		return
	}
	if n, _ := p.nodeOfPods(p.dst.Addr()); n != nil {
		p.node = n
		return
	}
	all := p.nodes()
	if a, ok := p.Announced[p.dst.Addr()]; ok {
		if all = p.announcers(a); len(all) == 0 {
			return
		}
	}
	// Which node gets the packet of several that may, the objects do not say. A node that has nothing for the packet is not
	// announced, so the first node that forwards it stands for all.
	for _, n := range all {
		if service.Lookup(p.table(n), p.packet(n)).Action == service.Forward {
			p.node = n
			break
		}
	}
	if p.node == nil && len(all) > 0 {
		p.node = all[0]
	}
	if p.node != nil && len(all) > 1 {
		p.out.NotLooked = append(p.out.NotLooked, "which node the network leads "+p.dst.Addr().String()+" to")
	}
}

// announcers adds the step that leads the packet to a node, and returns the nodes that announce its address.
func (p *predictor) announcers(a Announcement) (all []*Node) {
	for _, name := range a.Nodes {
		if n := p.Nodes[name]; n != nil {
			all = append(all, n)
		}
	}
	addr := p.dst.Addr().String()
	if len(all) == 0 {
		p.finding(NotAnnounced, Fatal, "fairway status --load-balancers", "Nobody announces %s: %s.", addr, cmp.Or(a.Reason, "no speaker reports it"))
		p.step(Step{Kind: KindAnnounce, State: Dropped, Text: "nobody announces " + addr, Reason: reason(NotAnnounced, a.Reason)})
		return nil
	}
	verb := " announces "
	if len(a.Nodes) > 1 {
		verb = " announce "
	}
	p.step(Step{Kind: KindAnnounce, State: Accepted, Text: strings.Join(a.Nodes, ", ") + verb + addr, Detail: a.How})
	return all
}

// packet returns the packet as a node sees it.
func (p *predictor) packet(n *Node) service.Packet {
	isPod := p.q.From.Kind == "Pod" && !p.fromNode()
	return service.Packet{
		From: p.src, To: p.dst, Proto: p.proto,
		FromPod:  isPod && p.pod.Node == n.Name && len(n.Facts.Settings.PodInterfaces) > 0,
		FromNode: p.fromNode() && p.origin == n,
		ToNode:   slices.Contains(n.Facts.OwnAddrs, p.dst.Addr()) || slices.Contains(n.Addrs, p.dst.Addr()),
	}
}

// travel follows the packet from its first node. A packet to another node's address meets that node's rules next.
func (p *predictor) travel() {
	if p.node == nil {
		p.step(Step{Kind: KindRoute, State: Dropped, Text: "no node is known"})
		return
	}
	if !p.src.IsValid() {
		p.finding(OtherFamily, Fatal, "", "%s has no address of the family of %v.", p.fromText(), p.dst.Addr())
		p.step(Step{Node: p.node.Name, Kind: KindRoute, State: Dropped, Text: "no source address of this family", Reason: reason(OtherFamily, "the families differ")})
		return
	}
	for range 2 {
		p.out.Mode[p.node.Name] = p.Mode
		table := p.table(p.node)
		d := service.Lookup(table, p.packet(p.node))
		if p.svc == nil && d.Frontend != nil {
			p.svc = p.Services[d.Frontend.Service.Name]
		}
		if d.Frontend != nil {
			p.out.To.Service = d.Frontend.Service.String()
		}
		if d.Action != service.Pass {
			p.decided(d, table)
			return
		}
		other := p.nodeAt(p.dst.Addr())
		if other == nil || other == p.node {
			p.direct()
			return
		}
		if p.denied(p.endpointAt(p.dst)) {
			return
		}
		p.step(Step{
			Node: p.node.Name, Kind: KindRoute, State: Accepted, Text: "route to " + other.Name, Detail: p.dst.Addr().String(),
			Refs: []Ref{{Kernel: "route", Text: p.dst.Addr().String(), Show: "ip route get " + p.dst.Addr().String()}},
		})
		p.node = other
	}
}

// decided continues behind a decision about a Service.
func (p *predictor) decided(d service.Decision, table *service.Table) {
	p.candidates(d, table)
	before := &Addresses{Src: p.source(), Dst: p.dst.String()}
	s := Step{Node: p.node.Name, Kind: KindService, Hook: p.hook(), State: Accepted, Text: frontendText(d), Before: before, Refs: p.serviceRefs(d)}
	switch d.Action {
	case service.Forward:
		p.step(s)
		p.toEndpoint(d)
	case service.Reject:
		s.State, s.Reason = Refused, &Reason{Code: serviceCode(d.Reason), Text: d.Reason.String()}
		s.Detail = d.Reason.String()
		p.step(s)
		p.explainService(d)
	default:
		s.State, s.Reason = Dropped, &Reason{Code: serviceCode(d.Reason), Text: d.Reason.String()}
		s.Detail = d.Reason.String()
		p.step(s)
		p.explainService(d)
	}
}

// hook returns the hook in which the first node looks at the packet.
func (p *predictor) hook() string {
	if p.ownPacket() {
		return "output"
	}
	return "prerouting"
}

// source is the sender's address as text.
func (p *predictor) source() string { return addrText(p.src) }

func frontendText(d service.Decision) string {
	if d.Frontend == nil {
		return "no Service's port"
	}
	f := d.Frontend
	text := string(f.Kind())
	if d.Route != nil && d.Route.Local {
		text += ", traffic policy Local"
	}
	text += ", " + f.Balance.String()
	if f.Affinity > 0 {
		text += ", affinity " + f.Affinity.String()
	}
	return text
}

// candidates lists the endpoints with their reasons.
func (p *predictor) candidates(d service.Decision, table *service.Table) {
	f := d.Frontend
	if f == nil {
		return
	}
	svc := p.Services[f.Service.Name]
	if svc == nil {
		return
	}
	total := 0
	weight := map[netip.AddrPort]int{}
	if d.Action == service.Forward {
		for _, e := range d.Route.Endpoints {
			w := max(1, int(e.Weight))
			weight[e.Addr] = w
			total += w
		}
	}
	for _, x := range service.Explain(svc.Service, p.Slices[svc.Name], p.node.Facts, table.Entry(svc.Name)) {
		if x.Service != f.Service || x.Proto != f.Proto || x.Addr.Addr().Is4() != f.Addr.Addr().Is4() && x.Internal != service.OtherFamily {
			continue
		}
		c := Candidate{Addr: x.Addr.String(), Pod: x.Pod, Node: x.Node}
		if x.Addr.Port() == 0 {
			c.Addr = x.Addr.Addr().String()
		}
		if why := x.At(f, d.Packet.Internal()); why == service.Used {
			c.Kept = true
			if total > 0 {
				c.Share = float64(weight[x.Addr]) / float64(total)
			}
		} else {
			c.Reason = p.exclusionText(why, x)
		}
		p.out.Candidates = append(p.out.Candidates, c)
	}
}

// exclusionText says why an endpoint is left out, with the names of this cluster.
func (p *predictor) exclusionText(why service.Exclusion, x service.Explanation) string {
	pod := p.Pods[api.Name{Namespace: x.Service.Namespace, Name: x.Pod}]
	switch why {
	case service.NotReady:
		if pod != nil {
			if text := pod.Unready(); text != "" {
				return "not ready: " + text
			}
		}
	case service.HintOtherZone:
		return "its zone hint is " + p.hints(x, true) + ", " + p.node.Name + " is in " + cmp.Or(p.node.Facts.Zone, "no zone")
	case service.HintOtherNode:
		return "its hint is " + p.hints(x, false) + ", not " + p.node.Name
	}
	return why.String()
}

// toEndpoint follows the packet to one endpoint: to the first that gets it, or else to the first.
func (p *predictor) toEndpoint(d service.Decision) {
	var follow *service.Endpoint
	for i := range d.Route.Endpoints {
		e := &d.Route.Endpoints[i]
		denied := p.judge(p.endpointAt(e.Addr), p.sourceAt(d, *e))
		if e.Addr == p.q.Follow || denied.text == "" && follow == nil {
			follow = e
		}
		for j := range p.out.Candidates {
			if c := &p.out.Candidates[j]; c.Addr == e.Addr.String() && c.Kept {
				c.Denied = denied.text
			}
		}
	}
	follow = cmp.Or(follow, &d.Route.Endpoints[0])
	for j := range p.out.Candidates {
		c := &p.out.Candidates[j]
		c.Followed = c.Kept && c.Addr == follow.Addr.String()
	}
	p.explainChoice()
	src := p.sourceAt(d, *follow)
	nat := Step{
		Node: p.node.Name, Kind: KindNAT, Hook: p.hook(), State: Accepted, Text: "dnat → " + follow.Addr.String(),
		Before: &Addresses{Src: p.source(), Dst: p.dst.String()}, After: &Addresses{Src: p.source(), Dst: follow.Addr.String()}, Refs: p.natRefs(d, *follow),
	}
	if p.Mode == "userspace" {
		nat.Kind, nat.Text = KindRelay, "the proxy calls "+follow.Addr.String()
	}
	if n := len(d.Route.Endpoints); n > 1 {
		nat.Detail = fmt.Sprintf("one of %d", n)
	}
	p.step(nat)
	if d.Masquerades(*follow) && !p.ownPacket() {
		p.step(Step{Node: p.node.Name, Kind: KindMasquerade, Hook: "postrouting", State: Accepted, Text: "source becomes " + p.node.Name + "'s", Detail: addrText(src),
			Before: &Addresses{Src: p.source(), Dst: follow.Addr.String()}, After: &Addresses{Src: addrText(src), Dst: follow.Addr.String()}})
	} else {
		p.step(Step{Node: p.node.Name, Kind: KindMasquerade, Hook: "postrouting", State: Accepted, Text: "source is kept", Detail: p.source()})
	}
	p.arrive(follow.Addr, src)
	p.reply(follow.Addr, src)
}

// sourceAt returns the source address that an endpoint sees.
func (p *predictor) sourceAt(d service.Decision, e service.Endpoint) netip.Addr {
	if d.Masquerades(e) {
		if a := of(p.node.Addrs, p.src.Is4()); a.IsValid() {
			return a
		}
	}
	return p.src
}

// arrive continues to an endpoint: the sender's policies, the route, the policies there.
func (p *predictor) arrive(to netip.AddrPort, src netip.Addr) {
	end := p.endpointAt(to)
	if p.deniedBy(end, src) {
		return
	}
	p.route(end)
	if p.ended {
		return
	}
	p.ingress(end, src)
	if p.ended {
		return
	}
	p.socket(end)
}

// direct continues to an address that no Service has.
func (p *predictor) direct() {
	p.explainAddress()
	end := p.endpointAt(p.dst)
	if p.ended {
		return
	}
	p.arrive(p.dst, p.src)
	p.replyDirect(end)
}

func (p *predictor) fromText() string {
	switch p.q.From.Kind {
	case "Pod":
		return p.q.From.Pod.Name
	case "Node":
		return p.q.From.Node
	}
	return "the client"
}

func reason(code Code, text string) *Reason { return &Reason{Code: code, Text: text} }
