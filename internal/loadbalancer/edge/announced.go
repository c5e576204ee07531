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

// Applied is where the table is that the kernel has: proxy.Applied.
type Applied interface {
	Table() *service.Table
	Subscribe() <-chan struct{}
}

// Announced is what a speaker needs to announce the addresses of the table that the kernel has: a
// layer2.Source in which the members are the nodes. No address is announced before its rules are in
// the kernel. Its methods but Run may be called by any goroutine.
type Announced struct {
	applied Applied
	news    <-chan struct{}
	input   announce.Input // but for the Services
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
		if cfg.ClientSource == SourceKeep { // an answer must find the machine that its connection came by
			s.input.L2[0].PreferredNodeSelectors = append(s.input.L2[0].PreferredNodeSelectors, announce.PreferredNodeSelector{
				Weight: len(a.Members) - i, Preference: api.NewSelector(api.Requirement{Key: memberLabel, Op: api.In, Values: []string{name}}),
			})
		}
	}
	return s
}

// memberLabel tells members apart where one of them is preferred.
const memberLabel = "member"

// NeedsLease reports whether the members' third vote is a Lease's.
func (a *Announce) NeedsLease() bool { return a != nil && len(a.Members) == 2 }

// voters are the members, and the Lease's where they are two. The list never changes.
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

// Voters returns the list, which the configuration says.
func (s *Announced) Voters() election.Voters { return s.voters }

// SetVoters refuses: who votes, the configuration says.
func (s *Announced) SetVoters(context.Context, election.Voters) error {
	return errors.New("the members are fixed")
}

// Input returns what decides, as it is now.
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

// take replaces the Services, if their addresses are others.
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
