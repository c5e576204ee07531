package iptables

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/service/lb"
)

// A fragment is what some frontends of one family need in the kernel.
type fragment struct {
	chains  map[chain][]string // whole chains
	entries map[chain][]string // rules in chains that it shares with others
	elems   map[elem]int       // elements of the helper's sets, and how often
}

func newFragment() *fragment {
	return &fragment{map[chain][]string{}, map[chain][]string{}, map[elem]int{}}
}

// A renderer turns groups into rules, on a node with some settings.
type renderer struct {
	settings service.Settings
	liberal  bool            // the node takes TCP packets out of window for valid
	marks    *lb.IDs[string] // of endpoints' chains with affinity

	// Numbers of lists of endpoints with affinity, by chain and family: of those with many
	// buckets, which each Service and family has some of (full), and of those with few.
	lists, fewLists *lb.IDs[string]
	fullLists       map[string]map[string]bool
}

// newRenderer returns a renderer that has given no numbers yet.
func newRenderer(s service.Settings, liberal bool) *renderer {
	return &renderer{settings: s, liberal: liberal, marks: lb.NewIDs[string](maxMark),
		lists: lb.NewIDs[string](maxMark), fewLists: lb.NewIDs[string](maxMark), fullLists: map[string]map[string]bool{}}
}

// render renders what one group has in one family.
func (p *renderer) render(is4 bool, fronts []*service.Frontend) *fragment {
	s := &builder{renderer: p, fragment: newFragment(), is4: is4,
		names: map[string]string{}, taken: map[string]bool{}, masq: map[string][]string{}}
	for _, f := range fronts {
		if f.Addr.Addr().Is4() == is4 {
			s.frontend(f)
		}
	}
	for list, rules := range s.masq {
		c := chain{nat, list}
		s.chains[c] = append(rules, s.chains[c]...)
	}
	return s.fragment
}

// A builder is a fragment of one group in one family under way.
type builder struct {
	*renderer
	*fragment
	is4   bool
	names map[string]string   // of a chain's content : its name
	taken map[string]bool     // names
	masq  map[string][]string // rules that come before a list's endpoints
}

// chainName names a chain. The first of a kind has kube-proxy's name; others, which no
// policy of Kubernetes needs, have one made of their content as well.
func (s *builder) chainName(f *service.Frontend, prefix, content string, of ...string) (name string, there bool) {
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
	in, kind := nodeports, ""
	if !f.NodePort() {
		at.dst, in, kind = hostCIDR(f.Addr.Addr()), services, " external IP"
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
		s.entry(chain{nat, in}, at)
	}
	s.refuse(f)
	s.elements(f)
}

// How comments say that an address is a load balancer's: in the rule that leads to the
// Service's chain by kube-proxy's words, and where there is no such rule by ours.
const (
	loadBalancerIP   = " loadbalancer IP"
	loadBalancerWord = " load-balancer"
)

// forwards reports whether a rule leads from the frontend to a chain of its Service.
func forwards(f *service.Frontend) bool {
	return f.Internal.Action == service.Forward || f.External.Action == service.Forward || len(f.Sources) > 0
}

// extras are the facts about a frontend that no rule shows.
func extras(f *service.Frontend) (text string) {
	if f.Affinity > 0 {
		text += " affinity " + f.Affinity.String()
	}
	if f.Balance != service.Random {
		text += " balance " + f.Balance.String()
	}
	if f.LoadBalancer && !forwards(f) {
		text += loadBalancerWord
	}
	return text
}

// target is the chain that a frontend's packets go to.
func (s *builder) target(f *service.Frontend) string {
	to := ""
	switch {
	case f.Internal.Action != service.Forward && f.External.Action != service.Forward:
		to = "RETURN"
	case f.ClusterIP && f.Internal.Equal(f.External):
		to = s.list(f, f.Internal)
		s.cluster(f, to)
	default:
		to = s.external(f)
	}
	if len(f.Sources) == 0 {
		return to
	}
	name, there := s.chainName(f, fw, to+sourcesText(f.Sources))
	if there {
		return name
	}
	var rules []string
	for _, p := range f.Sources {
		rules = append(rules, rule{src: p.String(), comment: truncate(f.Service.String() + loadBalancerIP), jump: to}.String())
	}
	note := rule{comment: truncate("other traffic to " + f.Service.String() + " will be dropped by KUBE-PROXY-FIREWALL")}
	s.chains[chain{nat, name}] = append(rules, note.String())
	return name
}

// cluster marks clients that must be masqueraded on the way to a ClusterIP, in the list's chain.
func (s *builder) cluster(f *service.Frontend, list string) {
	r := rule{dst: hostCIDR(f.Addr.Addr()), proto: f.Proto, port: f.Addr.Port(), comment: f.Service.String() + " cluster IP"}
	switch f.Internal.Masquerade {
	case service.MasqueradeHairpin:
		return
	case service.MasqueradeOffCluster:
		r = s.offCluster(r)
	default:
		r.comment, r.jump = r.comment+allMasqueraded, markMasq
	}
	s.masq[list] = append(s.masq[list], r.String())
}

// allMasqueraded distinguishes MasqueradeAll from MasqueradeOffCluster on a node without pod
// ranges; offClusterMasqueraded does the same for clients from outside, which are not pods.
const allMasqueraded, offClusterMasqueraded = ", everyone", ", all but pods"

// pods are the matches for clients that are pods, in one family.
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

// offCluster makes r mark packets of all clients but pods for masquerade.
func (s *builder) offCluster(r rule) rule {
	pods := s.pods(s.is4)
	r.jump = markMasq
	switch len(pods) {
	case 0:
	case 1:
		r.src, r.in = pods[0].src, pods[0].in
		r.notSrc, r.notIn = r.src != "", r.in != ""
	default:
		r.jump = markOffCluster
	}
	return r
}

// external is the chain of a frontend that outside clients use.
func (s *builder) external(f *service.Frontend) string {
	key := routeText(f.Internal) + " " + routeText(f.External) + " " + choiceText(f)
	name, there := s.chainName(f, ext, key)
	if there {
		return name
	}
	to := func(what string) string { return what + " for " + f.Service.String() + " external destinations" }
	var rules []rule
	if !f.Internal.Equal(f.External) {
		rules = s.internalRules(f, to)
	}
	if r := f.External; r.Action == service.Forward {
		mark := rule{comment: to("masquerade traffic"), jump: markMasq}
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
	s.write(chain{nat, name}, rules)
	return name
}

// internalRules are the rules for pods and for the node itself, where they differ.
func (s *builder) internalRules(f *service.Frontend, to func(string) string) (rules []rule) {
	r, jump := f.Internal, "RETURN"
	if r.Action == service.Forward {
		jump = s.list(f, r)
	}
	for _, pod := range s.pods(s.is4) {
		if r.Action == service.Forward && r.Masquerade == service.MasqueradeAll {
			mark := pod
			mark.comment, mark.jump = to("masquerade pod traffic"), markMasq
			rules = append(rules, mark)
		}
		pod.comment, pod.jump = to("pod traffic"), jump
		rules = append(rules, pod)
	}
	if r.Action == service.Forward && r.Masquerade != service.MasqueradeHairpin {
		mark := rule{comment: to("masquerade LOCAL traffic"), matches: fromLocal, jump: markMasq}
		if r.Masquerade == service.MasqueradeAll {
			mark.comment += allMasqueraded
		}
		rules = append(rules, mark)
	}
	return append(rules, rule{comment: to("route LOCAL traffic"), matches: fromLocal, jump: jump})
}

func (s *builder) write(c chain, rules []rule) {
	texts := make([]string, 0, len(rules))
	for _, r := range rules {
		r.comment = truncate(r.comment)
		texts = append(texts, r.String())
	}
	s.chains[c] = texts
}

// endpoint is the chain of one endpoint. Lists share it, unless clients stay at it.
func (s *builder) endpoint(f *service.Frontend, e service.Endpoint, list string) string {
	content := endpointText(e)
	if f.Affinity > 0 {
		content += list
	}
	name, there := s.chainName(f, sep, content, e.Addr.String())
	if there {
		return name
	}
	own := f.Service.String()
	rules := []rule{{src: hostCIDR(e.Addr.Addr()), comment: own, jump: markMasq}}
	if f.Affinity > 0 {
		n := s.mark(name)
		rules = append(rules, rule{comment: own, matches: fmt.Sprintf("-m connmark ! --mark %#x", markKnown|n),
			jump: fmt.Sprintf("CONNMARK --set-xmark %#x/0xffffffff", markChosen|n)})
	}
	rules = append(rules, rule{proto: f.Proto, comment: own, jump: "DNAT --to-destination " + e.Addr.String()})
	s.write(chain{nat, name}, rules)
	return name
}

// mark is the number of an endpoint's chain; there are more than a node has chains.
func (p *renderer) mark(name string) uint32 {
	id, _ := p.marks.Get(name)
	return id
}

// A connection is marked between two hooks only, with the number of its endpoint's chain:
// markChosen if it is new there, markKnown if its client was there before.
const markChosen, markKnown = numbers.ConnMarkChosen, numbers.ConnMarkKnown

// refuse renders the rules for packets that no endpoint gets.
func (s *builder) refuse(f *service.Frontend) {
	at := rule{proto: f.Proto, port: f.Addr.Port()}
	c := chain{filter, externals}
	switch {
	case f.NodePort():
		c.name = nodeports
	case f.ClusterIP:
		c.name = services
	}
	if !f.NodePort() {
		at.dst = hostCIDR(f.Addr.Addr())
	}
	refuse := func(a service.Action, from rule) {
		r := at
		r.src, r.in, r.matches = from.src, from.in, from.matches
		r.jump, r.comment = "DROP", truncate(f.Service.String()+" has no local endpoints"+extras(f))
		if a == service.Reject {
			r.jump, r.comment = rejects(s.is4), truncate(f.Service.String()+" has no endpoints"+extras(f))
		}
		if a == service.Drop || len(f.Sources) == 0 || from != (rule{}) {
			s.entry(c, r)
			return
		}
		for _, p := range f.Sources { // clients that may not connect get no answer
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
	case in != service.Forward: // others are translated before they come here
		refuse(in, rule{})
	case out != service.Forward:
		refuse(out, rule{})
	}
	if len(f.Sources) > 0 {
		if !f.NodePort() {
			c.name = firewall
		}
		at.comment, at.jump = truncate(f.Service.String()+" traffic not accepted by "+fw+hash(f.Service, f.Proto)), "DROP"
		s.entry(c, at)
	}
}

func rejects(is4 bool) string {
	if is4 {
		return "REJECT --reject-with icmp-port-unreachable"
	}
	return "REJECT --reject-with icmp6-port-unreachable"
}

// elements are the frontend's elements in the helper's sets.
func (s *builder) elements(f *service.Frontend) {
	put := func(e elem) { s.elems[e]++ }
	if f.ClusterIP {
		put(elem{set: nftset.ClusterIPs.Name(s.is4), key: string(f.Addr.Addr().AsSlice())})
	}
	if f.Affinity <= 0 {
		return
	}
	own := func(r *service.Route) []byte {
		if r.Action != service.Forward {
			return make([]byte, 4)
		}
		list := s.list(f, r)
		id := s.numberOfList(inFamily(f.Service.Name.String(), s.is4), inFamily(list, s.is4))
		number := nftset.Number(id)
		for _, e := range r.Endpoints {
			n, seconds := s.mark(s.endpoint(f, e, list)), max(1, int64(f.Affinity/time.Second))
			put(elem{set: affinityLists, key: string(nftset.Number(markChosen | n)), data: string(number)})
			put(elem{set: affinityUpdates, key: string(nftset.Number(markChosen | n)), to: updater(updatePrefix, id, seconds)})
			put(elem{set: affinityUpdates, key: string(nftset.Number(markKnown | n)), to: updater(renewPrefix, id, seconds)})
		}
		return number
	}
	base, key := affinityIDs, string(affinityKey(f))
	if f.NodePort() {
		base = affinityIDsNodeports
	}
	put(elem{set: inFamily(base, s.is4), key: key, data: string(own(f.Internal))})
	if !f.Internal.Equal(f.External) {
		put(elem{set: inFamily(base+external, s.is4), key: key, data: string(own(f.External))})
	}
}

// inFamily is a set's name in a family.
func inFamily(set string, is4 bool) string {
	if is4 {
		return set + "4"
	}
	return set + "6"
}

// ofFamily are the prefixes of a family.
func ofFamily(all []netip.Prefix, is4 bool) (some []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is4() == is4 {
			some = append(some, p)
		}
	}
	return some
}
