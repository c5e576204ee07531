package edge

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
	"github.com/fairway-net/fairway/internal/service"
)

// Applied has the table in the kernel. It is proxy.Applied.
type Applied interface {
	Table() *service.Table
	Subscribe() <-chan struct{}
}

// Announced lets a speaker announce the addresses of the table in the kernel: it is a layer2.Source with the members as
// nodes. The speaker announces no address before its rules are in the kernel. Any goroutine may call its methods except
// Run.
type Announced struct {
	applied Applied
	news    <-chan struct{}
	input   announce.Input // without the Services
	voters  election.Voters
	extra   []netip.Addr
	synced  chan struct{}
	wake    chan struct{}

	mu       sync.Mutex
	services []*announce.Service
}

// NewAnnounced returns an Announced of the addresses that cfg allows.
func NewAnnounced(cfg *Config, applied Applied) *Announced {
	a := cfg.Announce
	s := &Announced{
		applied: applied, news: applied.Subscribe(), extra: a.Gateways,
		synced: make(chan struct{}), wake: make(chan struct{}, 1), voters: a.voters(),
	}
	pool := &ipam.Pool{Name: "edge"}
	for _, p := range cfg.Addresses {
		pool.Ranges = append(pool.Ranges, ipam.RangeOf(p))
	}
	for _, g := range a.Gateways {
		pool.Ranges = append(pool.Ranges, ipam.Range{First: g, Last: g})
	}
	s.input = announce.Input{
		Pools: []*ipam.Pool{pool}, Endpoints: func(api.Name) announce.Endpoints { return announce.Endpoints{Any: true} },
		L2: []*announce.L2Advertisement{{Name: "edge", Interfaces: a.Interfaces}},
	}
	for i, name := range slices.Sorted(maps.Keys(a.Members)) {
		s.input.Nodes = append(s.input.Nodes, announce.Node{Name: name, Addrs: []netip.Addr{a.Members[name]}, Labels: map[string]string{memberLabel: name}})
		if cfg.ClientSource == SourceKeep { // an answer must pass the machine with the connection
			s.input.L2[0].PreferredNodeSelectors = append(s.input.L2[0].PreferredNodeSelectors, announce.PreferredNodeSelector{
				Weight: len(a.Members) - i, Preference: api.NewSelector(api.Requirement{Key: memberLabel, Op: api.In, Values: []string{name}}),
			})
		}
	}
	return s
}

// memberLabel is the label with a member's name, by which a preferred member is selected.
const memberLabel = "member"

// NeedsLease reports whether a Lease has the members' third vote.
func (a *Announce) NeedsLease() bool { return a != nil && len(a.Members) == 2 }

// voters returns the members, and the Lease if there are two members. The list never changes.
func (a *Announce) voters() election.Voters {
	v := election.Voters{Epoch: 1, Names: slices.Sorted(maps.Keys(a.Members))}
	if a.NeedsLease() {
		v.Names = slices.Sorted(slices.Values(append(v.Names, election.LeaseVoter)))
	}
	return v
}

// Synced is closed when the kernel has the first table.
func (s *Announced) Synced() <-chan struct{} { return s.synced }

// Dirty receives when the Services' addresses have changed.
func (s *Announced) Dirty() <-chan struct{} { return s.wake }

// Voters returns the voters of the configuration.
func (s *Announced) Voters() election.Voters { return s.voters }

// SetVoters returns an error, because the configuration has the voters.
func (s *Announced) SetVoters(context.Context, election.Voters) error {
	return errors.New("the members are fixed")
}

// Input returns the present input of decisions.
func (s *Announced) Input() announce.Input {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.input
	in.Services = s.services
	return in
}

// Run follows the table until ctx ends, and returns nil then.
func (s *Announced) Run(ctx context.Context) error {
	for first := true; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-s.news:
		}
		table := s.applied.Table()
		if table == nil {
			continue
		}
		s.take(addressesOf(table, s.extra))
		if first {
			first = false
			close(s.synced)
		}
	}
}

// take replaces the Services if their addresses have changed.
func (s *Announced) take(now []*announce.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := func(a, b *announce.Service) bool { return a.Name == b.Name && slices.Equal(a.Addrs, b.Addrs) }
	if !slices.EqualFunc(s.services, now, same) {
		s.services = now
		notify(s.wake)
	}
}

// addressesOf returns the load balancers' addresses in a table by Service, sorted, and extra ones.
func addressesOf(t *service.Table, extra []netip.Addr) (all []*announce.Service) {
	by := map[api.Name]map[netip.Addr]struct{}{}
	for f := range t.Frontends() {
		if f.LoadBalancer {
			if by[f.Service.Name] == nil {
				by[f.Service.Name] = map[netip.Addr]struct{}{}
			}
			by[f.Service.Name][f.Addr.Addr()] = struct{}{}
		}
	}
	for name, addrs := range by {
		all = append(all, &announce.Service{Name: name, Addrs: slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)})
	}
	if len(extra) > 0 {
		all = append(all, &announce.Service{Name: api.Name{Name: "gateways"}, Addrs: extra})
	}
	slices.SortFunc(all, func(a, b *announce.Service) int { return a.Compare(b.Name) })
	return all
}
