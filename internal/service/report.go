package service

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fairway-net/fairway/internal/api"
)

// An Origin is the place a packet comes from, as far as Frontends distinguish clients.
type Origin string

// The origins.
const (
	FromPod     Origin = "pod"
	FromNode    Origin = "node"
	FromOutside Origin = "outside"
)

// Origins returns all origins, in the order of a Report.
func Origins() []Origin { return []Origin{FromPod, FromNode, FromOutside} }

// ParseOrigins returns the origin of that name; all origins if text is empty.
func ParseOrigins(text string) ([]Origin, error) {
	all := Origins()
	if text == "" {
		return all, nil
	}
	if i := slices.Index(all, Origin(text)); i >= 0 {
		return all[i : i+1], nil
	}
	return nil, fmt.Errorf("%q is not a place [choose pod, node or outside]", text)
}

// A Report has the answers of Decide and Explain for one Service on one node. Programs read its JSON, so the fields stay.
type Report struct {
	Service   string           `json:"service"`
	Node      string           `json:"node"`
	Zone      string           `json:"zone,omitempty"`
	Frontends []FrontendReport `json:"frontends"`
	Problems  []api.Problem    `json:"problems,omitempty"`
}

// A FrontendReport is about one address of the Service.
type FrontendReport struct {
	Address  string          `json:"address"` // "10.96.0.9:80/TCP"
	Port     string          `json:"port,omitempty"`
	Kind     Kind            `json:"kind"`
	ServedAt []string        `json:"servedAt,omitempty"` // for a NodePort: the node's addresses in these ranges
	Options  []string        `json:"options,omitempty"`  // affinity, balance, source ranges
	Traffic  []TrafficReport `json:"traffic"`
}

// A TrafficReport is about packets from one origin.
type TrafficReport struct {
	From   Origin `json:"from"`
	Action string `json:"action"`
	Reason string `json:"reason"`
	// Internal says that the internal traffic policy counts, not the external one.
	Internal bool `json:"internal"`
	// Source is the owner of the address that the endpoints see: "client" or "node". Hairpin packets always have the
	// node's address.
	Source    string           `json:"source,omitempty"`
	Endpoints []EndpointReport `json:"endpoints"`
}

// An EndpointReport is about one endpoint of the Service's slices.
type EndpointReport struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	Node    string `json:"node,omitempty"`
	Slice   string `json:"slice"`
	Used    bool   `json:"used"`
	Reason  string `json:"reason,omitempty"` // why the endpoint is not used
	// Weight is the endpoint's share; nil: the Service does not ask for weights.
	Weight *uint16 `json:"weight,omitempty"`
}

// NewReport reports the actions of the node of facts on packets from the given origins to svc. The endpoints of svc are in eps.
// entry is the Service's entry in the node's table, because older Services may have taken some of its addresses.
func NewReport(svc *Service, eps []*Slice, facts Facts, entry *Entry, from []Origin) Report {
	r := Report{Service: svc.Name.String(), Node: facts.Name, Zone: facts.Zone, Problems: entry.Problems}
	all := Explain(svc, eps, facts, entry)
	for _, f := range entry.Frontends {
		one := f.report(facts.Settings)
		var mine []Explanation
		for _, x := range all {
			if x.Service == f.Service && x.Proto == f.Proto && (x.Addr.Addr().Is4() == f.Addr.Addr().Is4() || x.Internal == OtherFamily) {
				mine = append(mine, x)
			}
		}
		for _, o := range from {
			traffic := f.traffic(o, facts.Settings, mine)
			for i := range traffic.Endpoints {
				if svc.Weighted {
					traffic.Endpoints[i].Weight = &mine[i].Weight
				}
			}
			one.Traffic = append(one.Traffic, traffic)
		}
		r.Frontends = append(r.Frontends, one)
	}
	slices.SortStableFunc(r.Frontends, func(a, b FrontendReport) int { return cmp.Compare(a.order(), b.order()) })
	return r
}

// order puts ClusterIPs first.
func (f FrontendReport) order() int {
	return slices.Index(Kinds(), f.Kind)
}

func (f *Frontend) report(s Settings) FrontendReport {
	r := FrontendReport{Address: f.Key().String(), Port: f.Service.Port, Kind: f.Kind()}
	if r.Kind == KindNodePort {
		r.ServedAt = s.servedAt(f.Addr.Addr().Is4())
	}
	if f.Balance != Random {
		r.Options = append(r.Options, "balance "+f.Balance.String())
	}
	if f.Affinity > 0 {
		r.Options = append(r.Options, "affinity "+f.Affinity.String())
	}
	if len(f.Sources) > 0 {
		r.Options = append(r.Options, "only clients in "+list(f.Sources))
	}
	return r
}

// servedAt returns the addresses and ranges of a family that serve NodePorts.
func (s Settings) servedAt(is4 bool) (at []string) {
	for _, p := range s.NodePorts {
		switch {
		case p.Addr().Is4() != is4:
		case p.IsSingleIP():
			at = append(at, p.Addr().String())
		default:
			at = append(at, p.String())
		}
	}
	return at
}

// traffic decides about a client that is no endpoint and that may come in.
func (f *Frontend) traffic(o Origin, s Settings, all []Explanation) TrafficReport {
	detect4, detect6 := s.Detect()
	is4 := f.Addr.Addr().Is4()
	p := Packet{To: f.Addr, Proto: f.Proto, FromNode: o == FromNode, FromPod: o == FromPod && (is4 && detect4 || !is4 && detect6)}
	if len(f.Sources) > 0 {
		p.From = f.Sources[0].Addr()
	}
	d := f.Decide(p)
	r := TrafficReport{From: o, Action: d.Action.String(), Reason: d.Reason.String(), Internal: p.Internal(), Endpoints: []EndpointReport{}}
	if d.Action == Forward {
		r.Source = "client"
		if p.FromNode || d.Masquerades(Endpoint{}) {
			r.Source = "node"
		}
	}
	for _, x := range all {
		e := EndpointReport{Address: x.Addr.String(), Pod: x.Pod, Node: x.Node, Slice: x.Slice.Name}
		if x.Addr.Port() == 0 && x.Addr.Addr().IsValid() {
			e.Address = x.Addr.Addr().String()
		}
		if why := x.At(f, p.Internal()); why == Used {
			e.Used = true
		} else {
			e.Reason = why.String()
		}
		r.Endpoints = append(r.Endpoints, e)
	}
	return r
}
