package iptables

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// A fragment has the rules and elements for the frontends of one group and family.
type fragment struct {
	chains  map[chain][]string // whole chains
	entries map[chain][]string // rules in shared chains
	elems   map[elem]int       // elements of the helper's sets, and how many frontends use each
}

func newFragment() *fragment {
	return &fragment{map[chain][]string{}, map[chain][]string{}, map[elem]int{}}
}

// A renderer turns groups into rules.
type renderer struct {
	settings service.Settings
	liberal  bool            // the node's connection tracking accepts TCP packets that are out of the window
	marks    *lb.IDs[string] // of the chains KUBE-SEP- with affinity, by name

	// The numbers of lists of endpoints with affinity, by the list's chain and family. The IDs in lists have many
	// buckets, the IDs in fewLists few. The map fullLists has the lists with many buckets of each Service and family.
	lists, fewLists *lb.IDs[string]
	fullLists       map[string]map[string]bool
}

// newRenderer returns a renderer that has given no numbers.
func newRenderer(s service.Settings, liberal bool) *renderer {
	return &renderer{settings: s, liberal: liberal, marks: lb.NewIDs[string](maxMark),
		lists: lb.NewIDs[string](maxMark), fewLists: lb.NewIDs[string](maxMark), fullLists: map[string]map[string]bool{}}
}

// render renders the frontends of one group in one family.
func (p *renderer) render(is4 bool, fronts []*service.Frontend) *fragment {
	s := &builder{renderer: p, fragment: newFragment(), is4: is4,
		names: map[string]string{}, taken: map[string]bool{}, masq: map[string][]string{}}
	for _, f := range fronts {
		if f.Addr.Addr().Is4() == is4 {
			s.frontend(f)
		}
	}
	for list, rules := range s.masq {
		c := natChain(list)
		s.chains[c] = append(rules, s.chains[c]...)
	}
	return s.fragment
}

// A builder builds the fragment of one group in one family.
type builder struct {
	*renderer
	*fragment
	is4   bool
	names map[string]string   // the name of a chain, by its content
	taken map[string]bool     // names in use
	masq  map[string][]string // rules at the beginning of a list's chain, before its endpoints
}

// chainName returns the name of a chain with some content, and whether it exists already. The first chain of a kind has
// kube-proxy's name. The names of further chains are hashed from their content as well.
func (s *builder) chainName(f *service.Frontend, prefix, content string, of ...string) (name string, exists bool) {
	key := prefix + strings.Join(of, "") + "\x00" + content
	if name := s.names[key]; name != "" {
		return name, true
	}
	name = prefix + hash(f.Service, f.Proto, of...)
	if s.taken[name] {
		name = prefix + hash(f.Service, f.Proto, append(of, content)...)
	}
	s.names[key], s.taken[name] = name, true
	return name, false
}

// entry adds a rule to a shared chain.
func (s *builder) entry(c chain, r rule) { s.entries[c] = append(s.entries[c], r.String()) }

func (s *builder) frontend(f *service.Frontend) {
	at := rule{proto: f.Proto, port: f.Addr.Port()}
	in, kind := xtables.KubeNodePorts, ""
	if !f.NodePort() {
		at.dst, in, kind = hostCIDR(f.Addr.Addr()), xtables.KubeServices, " external IP"
	}
	switch {
	case f.ClusterIP:
		kind = " cluster IP"
	case f.LoadBalancer:
		kind = loadBalancerIP
	}
	if forwards(f) {
		at.jump = s.target(f)
		at.comment = truncate(f.Service.String() + kind + extras(f))
		s.entry(natChain(in), at)
	}
	s.refuse(f)
	s.elements(f)
}

// A comment with onNodeWord says Frontend.OnNode. Both other words mean that an address is a load balancer's. kube-proxy writes loadBalancerIP, in the rule
// that leads to the Service's chain. Fairway adds loadBalancerWord for a frontend without this rule. The function
// translator.frontend parses both.
const (
	loadBalancerIP   = " loadbalancer IP"
	loadBalancerWord = " load-balancer"
	onNodeWord       = " on-node"
)

// forwards reports whether table nat has a rule for the frontend.
func forwards(f *service.Frontend) bool {
	return f.Internal.Action == service.Forward || f.External.Action == service.Forward || len(f.Sources) > 0
}

// extras returns the end of a comment, with facts that no rule shows. The function translator.frontend parses it.
func extras(f *service.Frontend) (text string) {
	if f.Affinity > 0 {
		text += " affinity " + f.Affinity.String()
	}
	if f.Balance != service.Random {
		text += " balance " + f.Balance.String()
	}
	if f.OnNode {
		text += onNodeWord
	}
	if f.LoadBalancer && !forwards(f) {
		text += loadBalancerWord
	}
	return text
}

// target returns the chain, or RETURN, to which a frontend's packets go.
func (s *builder) target(f *service.Frontend) string {
	target := ""
	switch {
	case f.Internal.Action != service.Forward && f.External.Action != service.Forward:
		target = "RETURN"
	case f.ClusterIP && f.Internal.Equal(f.External):
		target = s.list(f, f.Internal)
		s.cluster(f, target)
	default:
		target = s.external(f)
	}
	if len(f.Sources) == 0 {
		return target
	}
	name, exists := s.chainName(f, xtables.KubeFW, target+sourcesText(f.Sources))
	if exists {
		return name
	}
	var rules []string
	for _, p := range f.Sources {
		rules = append(rules, rule{src: p.String(), comment: truncate(f.Service.String() + loadBalancerIP), jump: target}.String())
	}
	note := rule{comment: truncate("other traffic to " + f.Service.String() + " will be dropped by KUBE-PROXY-FIREWALL")}
	s.chains[natChain(name)] = append(rules, note.String())
	return name
}

// cluster adds a rule to the list's chain that marks the ClusterIP's clients for masquerade. translator.forward parses
// its comment.
func (s *builder) cluster(f *service.Frontend, list string) {
	r := rule{dst: hostCIDR(f.Addr.Addr()), proto: f.Proto, port: f.Addr.Port(), comment: f.Service.String() + " cluster IP"}
	switch f.Internal.Masquerade {
	case service.MasqueradeHairpin:
		return
	case service.MasqueradeOffCluster:
		r = s.offCluster(r)
	default:
		r.comment, r.jump = r.comment+allMasqueraded, xtables.KubeMarkMasq
	}
	s.masq[list] = append(s.masq[list], r.String())
}

// In a comment allMasqueraded means MasqueradeAll: on a node without pod ranges the rule itself is equal to the rule of
// MasqueradeOffCluster. For external clients offClusterMasqueraded means MasqueradeOffCluster.
const allMasqueraded, offClusterMasqueraded = ", everyone", ", all but pods"

// pods returns the matches of packets from pods, in one family.
func (p *renderer) pods(is4 bool) (all []rule) {
	for _, cidr := range p.settings.Pods {
		if cidr.Addr().Is4() == is4 {
			all = append(all, rule{src: cidr.Masked().String()})
		}
	}
	for _, name := range p.settings.PodInterfaces {
		all = append(all, rule{in: link(name)})
	}
	return all
}

// offCluster makes r mark the packets of all clients except pods for masquerade.
func (s *builder) offCluster(r rule) rule {
	pods := s.pods(s.is4)
	r.jump = xtables.KubeMarkMasq
	switch len(pods) {
	case 0:
	case 1:
		r.src, r.in = pods[0].src, pods[0].in
		r.notSrc, r.notIn = r.src != "", r.in != ""
	default:
		r.jump = read.OffCluster
	}
	return r
}

// external returns the chain KUBE-EXT- of a frontend that clients outside the cluster use. translator.external parses
// its comments.
func (s *builder) external(f *service.Frontend) string {
	key := routeText(f.Internal) + " " + routeText(f.External) + " " + choiceText(f)
	name, exists := s.chainName(f, xtables.KubeEXT, key)
	if exists {
		return name
	}
	comment := func(what string) string { return what + " for " + f.Service.String() + " external destinations" }
	var rules []rule
	if !f.Internal.Equal(f.External) {
		rules = s.internalRules(f, comment)
	}
	if r := f.External; r.Action == service.Forward {
		mark := rule{comment: comment("masquerade traffic"), jump: xtables.KubeMarkMasq}
		switch {
		case r.Masquerade == service.MasqueradeAll:
			rules = append(rules, mark)
		case r.Masquerade == service.MasqueradeOffCluster:
			if mark.comment += offClusterMasqueraded; f.Internal.Equal(r) {
				mark = s.offCluster(mark)
			}
			rules = append(rules, mark)
		}
		rules = append(rules, rule{jump: s.list(f, r)})
	}
	s.write(natChain(name), rules)
	return name
}

// internalRules returns the rules for pods and for the node itself, if their route is not the external clients' route.
func (s *builder) internalRules(f *service.Frontend, comment func(string) string) (rules []rule) {
	r, jump := f.Internal, "RETURN"
	if r.Action == service.Forward {
		jump = s.list(f, r)
	}
	for _, pod := range s.pods(s.is4) {
		if r.Action == service.Forward && r.Masquerade == service.MasqueradeAll {
			mark := pod
			mark.comment, mark.jump = comment("masquerade pod traffic"), xtables.KubeMarkMasq
			rules = append(rules, mark)
		}
		pod.comment, pod.jump = comment("pod traffic"), jump
		rules = append(rules, pod)
	}
	if r.Action == service.Forward && r.Masquerade != service.MasqueradeHairpin {
		mark := rule{comment: comment("masquerade LOCAL traffic"), matches: fromLocal, jump: xtables.KubeMarkMasq}
		if r.Masquerade == service.MasqueradeAll {
			mark.comment += allMasqueraded
		}
		rules = append(rules, mark)
	}
	return append(rules, rule{comment: comment("route LOCAL traffic"), matches: fromLocal, jump: jump})
}

// write adds a chain.
func (s *builder) write(c chain, rules []rule) {
	texts := make([]string, 0, len(rules))
	for _, r := range rules {
		r.comment = truncate(r.comment)
		texts = append(texts, r.String())
	}
	s.chains[c] = texts
}

// endpoint returns the chain KUBE-SEP- of one endpoint. The lists of a group share it, except with affinity: there the
// mark of the chain identifies the list too.
func (s *builder) endpoint(f *service.Frontend, e service.Endpoint, list string) string {
	content := endpointText(e)
	if f.Affinity > 0 {
		content += list
	}
	name, exists := s.chainName(f, xtables.KubeSEP, content, e.Addr.String())
	if exists {
		return name
	}
	own := f.Service.String()
	rules := []rule{{src: hostCIDR(e.Addr.Addr()), comment: own, jump: xtables.KubeMarkMasq}}
	if f.Affinity > 0 {
		n := s.mark(name)
		rules = append(rules, rule{comment: own, matches: fmt.Sprintf("-m connmark ! --mark %#x", markKnown|n),
			jump: fmt.Sprintf("CONNMARK --set-xmark %#x/0xffffffff", markChosen|n)})
	}
	rules = append(rules, rule{proto: f.Proto, comment: own, jump: "DNAT --to-destination " + e.Addr.String()})
	s.write(natChain(name), rules)
	return name
}

// mark returns the number of an endpoint's chain. There are more numbers than a node can have chains.
func (p *renderer) mark(name string) uint32 {
	id, _ := p.marks.Get(name)
	return id
}

// Between two hooks the connection's mark has the number of its endpoint's chain. The bits markKnown mean that the
// client was known, the bits markChosen that a rule has just chosen the endpoint for a new client.
const markChosen, markKnown = numbers.ConnMarkChosen, numbers.ConnMarkKnown

// refuse adds the rules that reject or drop packets of the frontend, in table filter. translator.refusal and
// translator.frontend parse their comments.
func (s *builder) refuse(f *service.Frontend) {
	at := rule{proto: f.Proto, port: f.Addr.Port()}
	c := filterChain(xtables.KubeExternalServices)
	switch {
	case f.NodePort():
		c.Name = xtables.KubeNodePorts
	case f.ClusterIP:
		c.Name = xtables.KubeServices
	}
	if !f.NodePort() {
		at.dst = hostCIDR(f.Addr.Addr())
	}
	refuse := func(a service.Action, from rule) {
		r := at
		r.src, r.in, r.matches = from.src, from.in, from.matches
		r.jump, r.comment = "DROP", truncate(f.Service.String()+" has no local endpoints"+extras(f))
		if a == service.Reject {
			r.jump, r.comment = rejects(s.is4, f.Proto), truncate(f.Service.String()+" has no endpoints"+extras(f))
		}
		if a == service.Drop || len(f.Sources) == 0 || from != (rule{}) {
			s.entry(c, r)
			return
		}
		for _, p := range f.Sources { // clients outside the source ranges get no answer
			r.src = p.String()
			s.entry(c, r)
		}
	}
	in, out := f.Internal.Action, f.External.Action
	switch {
	case in != service.Forward && out != service.Forward && in != out:
		for _, from := range append(s.pods(s.is4), rule{matches: fromLocal}) {
			refuse(in, from)
		}
		refuse(out, rule{})
	case in != service.Forward: // packets of external clients are translated before they come here
		refuse(in, rule{})
	case out != service.Forward:
		refuse(out, rule{})
	}
	if len(f.Sources) > 0 {
		if !f.NodePort() {
			c.Name = xtables.KubeProxyFirewall
		}
		at.comment, at.jump = truncate(f.Service.String()+" traffic not accepted by "+xtables.KubeFW+hash(f.Service, f.Proto)), "DROP"
		s.entry(c, at)
	}
}

// rejects returns the target that rejects packets of a family and protocol. kube-proxy answers TCP by ICMP too, but the
// kernel limits ICMP errors to one a second for each client.
func rejects(is4 bool, proto api.Proto) string {
	switch {
	case proto == api.TCP:
		return "REJECT --reject-with tcp-reset"
	case is4:
		return "REJECT --reject-with icmp-port-unreachable"
	}
	return "REJECT --reject-with icmp6-port-unreachable"
}

// elements adds the frontend's elements of the helper's sets.
func (s *builder) elements(f *service.Frontend) {
	add := func(e elem) { s.elems[e]++ }
	if f.ClusterIP {
		add(elem{set: nftset.ClusterIPs.Name(s.is4), key: string(f.Addr.Addr().AsSlice())})
	}
	if f.OwnsAddress() {
		add(elem{set: nftset.ExternalAddresses.Name(s.is4), key: string(f.Addr.Addr().AsSlice())})
	}
	if f.Affinity <= 0 {
		return
	}
	numberOf := func(r *service.Route) []byte { // of the route's list
		if r.Action != service.Forward {
			return make([]byte, 4)
		}
		list := s.list(f, r)
		id := s.numberOfList(inFamily(f.Service.Name.String(), s.is4), inFamily(list, s.is4))
		number := nftset.Number(id)
		for _, e := range r.Endpoints {
			n, seconds := s.mark(s.endpoint(f, e, list)), max(1, int64(f.Affinity/time.Second))
			add(elem{set: affinityLists, key: string(nftset.Number(markChosen | n)), data: string(number)})
			add(elem{set: affinityUpdates, key: string(nftset.Number(markChosen | n)), to: updateChain(updatePrefix, id, seconds)})
			add(elem{set: affinityUpdates, key: string(nftset.Number(markKnown | n)), to: updateChain(renewPrefix, id, seconds)})
		}
		return number
	}
	base, key := affinityIDs, string(affinityKey(f))
	if f.NodePort() {
		base = affinityIDsNodeports
	}
	add(elem{set: inFamily(base, s.is4), key: key, data: string(numberOf(f.Internal))})
	if !f.Internal.Equal(f.External) {
		add(elem{set: inFamily(base+external, s.is4), key: key, data: string(numberOf(f.External))})
	}
}

// inFamily returns a set's name in a family: "cluster-ips4".
func inFamily(set string, is4 bool) string {
	if is4 {
		return set + "4"
	}
	return set + "6"
}

// ofFamily returns the prefixes of one family.
func ofFamily(all []netip.Prefix, is4 bool) (some []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is4() == is4 {
			some = append(some, p)
		}
	}
	return some
}
