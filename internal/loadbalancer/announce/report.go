package announce

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
)

// A Protocol is the means by which nodes announce an address.
type Protocol string

// The protocols. OwnNode means a node's own address (ServiceLB), which needs no announcement. Outside means an address of
// a balancer outside of the cluster (an edge).
const (
	L2      Protocol = "l2" // ARP and NDP
	BGP     Protocol = "bgp"
	OwnNode Protocol = "node"
	Outside Protocol = "outside"
)

// A Holding is a speaker's statement that it announces addresses of a Service.
type Holding struct {
	Service  api.Name
	Node     string
	Protocol Protocol
	Addrs    []netip.Addr // nil: all of the Service
	By       []string     // interfaces, or BGPPeers
	Since    time.Time
}

// An AddressReport says which nodes announce an address, and why the other nodes do not.
type AddressReport struct {
	Address   string         `json:"address,omitempty"` // empty: the Service has none yet
	Services  []string       `json:"services"`          // with the address, sorted
	Announced []Announced    `json:"announced"`         // sorted by protocol and node
	Reason    string         `json:"reason,omitempty"`
	Elsewhere []NotAnnounced `json:"notAnnounced"` // sorted by protocol and node
}

// An Announced is a node that announces an address.
type Announced struct {
	Protocol Protocol  `json:"protocol"`
	Node     string    `json:"node"`
	Since    time.Time `json:"since,omitzero"` // of the announcement of the Service
	// By are the interfaces, or the BGPPeers whose sessions are up or unknown.
	By []string `json:"by"`
}

// A NotAnnounced is a node that does not announce an address, to a BGPPeer or at all, with the reason.
type NotAnnounced struct {
	Protocol Protocol `json:"protocol"`
	Node     string   `json:"node"`
	Peer     string   `json:"peer,omitempty"`
	Reason   string   `json:"reason"`
	// Since is the start of that state; zero if the speaker does not report it.
	Since time.Time `json:"since,omitzero"`
}

// The reasons of reports. Other reasons come from Decide and DecideBGP.
const (
	noAddressYet         = "it has no address yet: "
	noAddress            = "it has no address yet [why: kubectl -n %s describe service %s]"
	noAdvertisementAtAll = "no L2Advertisement and no BGPAdvertisement is for its pool and Service"
	notHeard             = "its speaker does not say that it announces it, though it may [does it run, can it hear the others, has its proxy programmed the Service? kubectl logs of its fairway-speaker]"
	notInTurn            = "it comes before %s, which announces it [does its speaker run, can it hear the others? a node that was cut off waits for 10 s]"
	muted                = "its kernel mutes it: "
	refused              = "its speaker refuses it: "
	lacking              = "its speaker says: "
	refusedFirst         = "it has no turn: %s comes first, and its speaker refuses it"
	sessionDown          = "the session is not up: "
)

// A Pending is a Service that has no address.
type Pending struct {
	api.Name
	Reason string // the controller's; empty: unknown
}

// Report returns a report for each address of each Service, sorted by address. The announcing nodes come from the
// speakers' statements, and the reasons of the other nodes from Decide and DecideBGP. pending are Services without an
// address. Report ignores in.Node.
func Report(in BGPInput, said Said, pending []Pending) []AddressReport {
	r := reporter{in: in, l2: Decide(in.Input), leftOut: map[string]map[netip.Addr][]LeftOut{}, standings: standings{}, held: map[api.Name][]Holding{}}
	for _, s := range said.Standings {
		r.standings[s.Node] = append(r.standings[s.Node], s)
	}
	for _, h := range said.Held {
		r.held[h.Service] = append(r.held[h.Service], h)
	}
	for _, n := range in.Nodes {
		one := in
		one.Node = n.Name
		by := map[netip.Addr][]LeftOut{}
		for _, l := range DecideBGP(one).LeftOut {
			by[l.Addr] = append(by[l.Addr], l)
		}
		r.leftOut[n.Name] = by
	}
	all := []AddressReport{}
	for _, p := range pending {
		reason := fmt.Sprintf(noAddress, p.Namespace, p.Name.Name)
		if p.Reason != "" {
			reason = noAddressYet + p.Reason
		}
		all = append(all, AddressReport{Services: []string{p.Name.String()}, Announced: []Announced{}, Elsewhere: []NotAnnounced{}, Reason: reason})
	}
	sharing := in.sharing()
	addrs := make([]netip.Addr, 0, len(sharing))
	for a := range sharing {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, a := range addrs {
		all = append(all, r.address(a, sharing[a]))
	}
	return all
}

// ReportOutside returns the report of an address that a balancer outside of the cluster has. services are sorted.
func ReportOutside(a netip.Addr, services []api.Name) AddressReport {
	out := AddressReport{Address: a.String(), Announced: []Announced{{Protocol: Outside, By: []string{}}}, Elsewhere: []NotAnnounced{}}
	for _, name := range services {
		out.Services = append(out.Services, name.String())
	}
	return out
}

type reporter struct {
	in        BGPInput
	l2        map[netip.Addr]*Decision
	leftOut   map[string]map[netip.Addr][]LeftOut // the addresses that a node does not announce to routers, by node
	standings standings
	held      map[api.Name][]Holding
}

func (r *reporter) address(a netip.Addr, services []*Service) AddressReport {
	out := AddressReport{Address: a.String(), Announced: []Announced{}, Elsewhere: []NotAnnounced{}}
	for _, s := range services {
		out.Services = append(out.Services, s.Name.String())
	}
	holders := map[Protocol]map[string]bool{L2: {}, BGP: {}}
	for _, s := range services {
		for _, h := range r.held[s.Name] {
			if (h.Addrs == nil || slices.Contains(h.Addrs, a)) && !holders[h.Protocol][h.Node] {
				holders[h.Protocol][h.Node] = true
				r.holder(h, &out)
			}
		}
	}
	for _, n := range r.in.Nodes {
		if slices.Contains(n.Addrs, a) {
			out.Announced = append(out.Announced, Announced{Protocol: OwnNode, Node: n.Name, By: []string{}})
			return out
		}
	}
	reason := r.layer2(a, services, holders[L2], &out)
	if byBGP := r.routers(a, holders[BGP], &out); reason == NoAdvertisement {
		if reason = byBGP; byBGP == NoBGPAdvertisement {
			reason = noAdvertisementAtAll
		}
	}
	if len(out.Announced) == 0 {
		out.Reason = cmp.Or(reason, notHeardBy(out.Elsewhere))
	}
	slices.SortFunc(out.Announced, func(x, y Announced) int {
		return cmp.Or(-strings.Compare(string(x.Protocol), string(y.Protocol)), strings.Compare(x.Node, y.Node))
	})
	slices.SortStableFunc(out.Elsewhere, func(x, y NotAnnounced) int {
		return cmp.Or(-strings.Compare(string(x.Protocol), string(y.Protocol)), strings.Compare(x.Node, y.Node))
	})
	return out
}

// holder adds the statement of a node to the report: to Announced, or to Elsewhere if the network does not hear the node.
func (r *reporter) holder(h Holding, out *AddressReport) {
	by := append([]string{}, h.By...)
	switch h.Protocol {
	case L2:
		if d, down := r.standings.down(h.Node, ""); down {
			out.Elsewhere = append(out.Elsewhere, NotAnnounced{Protocol: L2, Node: h.Node, Reason: muted + d.Reason, Since: d.Since})
			return
		}
	case BGP:
		by = slices.DeleteFunc(by, func(peer string) bool {
			d, down := r.standings.down(h.Node, peer)
			if down {
				out.Elsewhere = append(out.Elsewhere, NotAnnounced{BGP, h.Node, peer, sessionDown + d.Reason, d.Since})
			}
			return down
		})
		if len(by) == 0 && len(h.By) > 0 {
			return
		}
	}
	out.Announced = append(out.Announced, Announced{h.Protocol, h.Node, h.Since, by})
}

// ownReasons begin the reasons that come from a speaker's own statement.
var ownReasons = []string{refused, muted, sessionDown, lacking}

// notHeardBy returns the reason for an address without announcement that a node may announce.
func notHeardBy(all []NotAnnounced) string {
	for _, own := range ownReasons {
		for _, n := range all {
			if strings.HasPrefix(n.Reason, own) {
				return strings.TrimSpace(n.Node+" "+n.Peer) + ": " + n.Reason
			}
		}
	}
	for _, n := range all {
		if n.Reason == notHeard {
			return fmt.Sprintf("%s may: %s", n.Node, notHeard)
		}
	}
	return "no node may announce it, for different reasons [fairway status --load-balancers -o wide]"
}

// layer2 adds the nodes that do not announce an address by ARP or NDP. reason is set if no node does.
func (r *reporter) layer2(a netip.Addr, services []*Service, holders map[string]bool, out *AddressReport) (reason string) {
	d := r.l2[a]
	if d.Reason == NoPool || d.Reason == NoAdvertisement || d.Reason == NoEndpoints {
		return d.Reason
	}
	ads, _ := r.in.advertisements(r.in.poolsOf(a, services), services)
	serving, _ := r.in.serving(services)
	holder := firstNode(holders)
	best, _ := d.Candidate(holder)
	refuser := r.refuser(a)
	for i := range r.in.Nodes {
		n := &r.in.Nodes[i]
		if holders[n.Name] {
			continue
		}
		c, why := candidate(n, ads)
		own, since := r.standings.whyNot(n.Name, a)
		switch {
		case why != "":
		case serving != nil && !serving[n.Name]:
			why = NoLocalEndpoint
		case own != "":
			why = own
		case len(holders) == 0 && refuser != "":
			why = fmt.Sprintf(refusedFirst, refuser)
		case len(holders) == 0:
			why = notHeard
		case d.before(n.Name, holder):
			why = fmt.Sprintf(notInTurn, holder)
		case c.Score < best.Score:
			why = holder + " has more points by preferredNodeSelectors"
		default:
			why = holder + " comes first by the hash of node and address"
		}
		if why != own {
			since = time.Time{}
		}
		out.Elsewhere = append(out.Elsewhere, NotAnnounced{Protocol: L2, Node: n.Name, Reason: why, Since: since})
	}
	return d.Reason
}

// refuser returns the first node whose speaker refuses an address; empty: there is none.
func (r *reporter) refuser(a netip.Addr) string {
	for _, n := range r.in.Nodes {
		if _, ok := r.standings.of(n.Name, "", a); ok {
			return n.Name
		}
	}
	return ""
}

// firstNode returns the first node by name; empty if there is none.
func firstNode(nodes map[string]bool) (first string) {
	for n := range nodes {
		if first == "" || n < first {
			first = n
		}
	}
	return first
}

// routers adds the nodes that do not announce an address to routers. reason is set if no node can.
func (r *reporter) routers(a netip.Addr, holders map[string]bool, out *AddressReport) (reason string) {
	var all []NotAnnounced
	for i := range r.in.Nodes {
		name := r.in.Nodes[i].Name
		left := r.leftOut[name][a]
		for _, l := range left {
			if l.Reason == NoPool || l.Reason == NoBGPAdvertisement || l.Reason == NoEndpoints {
				return l.Reason // of every node
			}
			if l.Peer != "" || !holders[name] {
				all = append(all, NotAnnounced{Protocol: BGP, Node: name, Peer: l.Peer, Reason: l.Reason})
			}
		}
		if len(left) == 0 && !holders[name] {
			all = append(all, NotAnnounced{Protocol: BGP, Node: name, Reason: notHeard})
		}
	}
	out.Elsewhere = append(out.Elsewhere, all...)
	return ""
}
