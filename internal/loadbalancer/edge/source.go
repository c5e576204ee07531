package edge

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/service"
)

// A Cluster is where a Source reads the API's objects as they are now: package kube's Edge. It is
// level-triggered, as a proxy.Source.
type Cluster interface {
	Nodes
	Take() []api.Name // Services that have changed
	Service(api.Name) (*service.Service, bool)
}

// A Source is the proxy loop's view of a Cluster in which nodes stand for pods: a proxy.Source.
// Its methods but Run may be called by any goroutine.
type Source struct {
	log     *slog.Logger
	cluster Cluster
	prober  *Prober
	checks  Checks
	wake    chan struct{}
	synced  chan struct{}
	silent  map[netip.Addr]map[Target]struct{} // targets that do not answer; of Run alone

	mu    sync.Mutex
	nodes []service.Instance
	asked map[api.Name][]question
	askBy map[question]map[api.Name]struct{}
	dirty map[api.Name]struct{}
}

// A question is how the nodes of a Service are asked, in one family.
type question struct {
	port uint16
	path string
	is4  bool
}

func (q question) target(a netip.Addr) Target { return Target{netip.AddrPortFrom(a, q.port), q.path} }

// NewSource returns a Source. The Prober's targets are the Source's.
func NewSource(log *slog.Logger, cluster Cluster, prober *Prober, checks Checks) *Source {
	return &Source{
		log: log, cluster: cluster, prober: prober, checks: checks,
		wake: make(chan struct{}, 1), synced: make(chan struct{}), silent: map[netip.Addr]map[Target]struct{}{},
		asked: map[api.Name][]question{}, askBy: map[question]map[api.Name]struct{}{}, dirty: map[api.Name]struct{}{},
	}
}

// Synced is closed when the first lists are in, and all nodes have answered for the first time or
// let their time pass.
func (s *Source) Synced() <-chan struct{} { return s.synced }

// Dirty receives when there is something to Take, or the nodes' addresses have changed.
func (s *Source) Dirty() <-chan struct{} { return s.wake }

// Triggers returns none: nodes carry no time of their change.
func (s *Source) Triggers() map[api.Name]time.Time { return nil }

// Take returns the Services whose endpoints may have changed since the last call, sorted.
func (s *Source) Take() []api.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]api.Name, 0, len(s.dirty))
	for n := range s.dirty {
		names = append(names, n)
	}
	clear(s.dirty)
	slices.SortFunc(names, api.Name.Compare)
	return names
}

// Service returns the Service of that name, as it is compiled here.
func (s *Source) Service(name api.Name) (*service.Service, bool) {
	svc, ok := s.cluster.Service(name)
	if !ok {
		return nil, false
	}
	own, _ := service.Instances(svc, nil, nil)
	return own, true
}

// Slices returns the nodes as the endpoints of the Service of that name.
func (s *Source) Slices(name api.Name) []*service.Slice {
	svc, ok := s.cluster.Service(name)
	if !ok {
		return nil
	}
	s.mu.Lock()
	nodes := s.nodes
	s.mu.Unlock()
	_, all := service.Instances(svc, nodes, func(a netip.Addr) service.ProbeResult {
		for _, q := range s.questions(svc) {
			if q.is4 == a.Is4() {
				return s.prober.Result(q.target(a))
			}
		}
		return service.ProbeResult{}
	})
	return all
}

// questions returns how the nodes of a Service are asked, in each family that it has: under
// externalTrafficPolicy Local whether they have endpoints, else whether their proxy works.
func (s *Source) questions(svc *service.Service) (all []question) {
	q := question{port: s.checks.ProxyPort, path: "/healthz"}
	if svc.ExternalLocal && svc.HealthCheckNodePort != 0 {
		q.port, q.path = svc.HealthCheckNodePort, "/"
	}
	for _, q.is4 = range []bool{true, false} {
		if slices.ContainsFunc(svc.ClusterIPs, func(a netip.Addr) bool { return a.Is4() == q.is4 }) {
			all = append(all, q)
		}
	}
	return all
}

// Run keeps the Source up to date until ctx ends, and returns nil then.
func (s *Source) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.cluster.Synced():
	}
	s.follow()
	for open := true; ; {
		changed, complete := s.prober.Take()
		s.answered(changed)
		if open && complete {
			open = false
			close(s.synced)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.cluster.Dirty():
			start := time.Now()
			if s.follow() { // one node's changes must not keep the edge busy with the questions to all nodes
				fair.Rest(ctx, time.Since(start), s.prober.Dirty())
			}
		case <-s.prober.Dirty():
		}
	}
}

// follow takes over what has changed in the cluster. It reports whether the questions to all nodes were compared.
func (s *Source) follow() (asks bool) {
	names, nodes := s.cluster.Take(), s.cluster.Instances()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range names {
		s.dirty[n] = struct{}{}
		asks = s.askAbout(n) || asks
	}
	if !slices.EqualFunc(nodes, s.nodes, service.Instance.Equal) {
		s.nodes = nodes
		for n := range s.asked {
			s.dirty[n] = struct{}{}
		}
		asks = true
	}
	notify(s.wake)
	if !asks {
		return false
	}
	want := map[Target]string{}
	for q, by := range s.askBy {
		namespace := ""
		if q.port != s.checks.ProxyPort { // the question of an ExternalLocal Service
			namespace = slices.MinFunc(slices.Collect(maps.Keys(by)), api.Name.Compare).Namespace
		}
		for _, node := range s.nodes {
			if a := node.Addr(q.is4); a.IsValid() {
				want[q.target(a)] = namespace
			}
		}
	}
	s.prober.Set(want)
	return true
}

// askAbout notes how the nodes of a Service are asked, and reports whether that has changed. s.mu
// is held.
func (s *Source) askAbout(n api.Name) bool {
	was, had := s.asked[n]
	svc, has := s.cluster.Service(n)
	var now []question
	if has {
		now = s.questions(svc)
	}
	if had == has && slices.Equal(was, now) {
		return false
	}
	delete(s.asked, n)
	for _, q := range was {
		if delete(s.askBy[q], n); len(s.askBy[q]) == 0 {
			delete(s.askBy, q)
		}
	}
	if has {
		s.asked[n] = now
	}
	for _, q := range now {
		if s.askBy[q] == nil {
			s.askBy[q] = map[api.Name]struct{}{}
		}
		s.askBy[q][n] = struct{}{}
	}
	return true
}

// answered marks the Services whose nodes have answered otherwise than before.
func (s *Source) answered(changed []Target) {
	if len(changed) == 0 {
		return
	}
	s.report(changed)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range changed {
		for n := range s.askBy[question{t.At.Port(), t.Path, t.At.Addr().Is4()}] {
			s.dirty[n] = struct{}{}
		}
	}
	notify(s.wake)
}

// report logs that a node has become silent, or is no more: a line for each address, not for each
// of its targets.
func (s *Source) report(changed []Target) {
	was := map[netip.Addr]bool{}
	for _, t := range changed {
		a := t.At.Addr()
		if _, seen := was[a]; !seen {
			was[a] = len(s.silent[a]) > 0
		}
		if s.silent[a] == nil {
			s.silent[a] = map[Target]struct{}{}
		}
		s.silent[a][t] = struct{}{}
	}
	for a, before := range was {
		for t := range s.silent[a] {
			if s.prober.Result(t).State != service.Silent {
				delete(s.silent[a], t)
			}
		}
		switch now := len(s.silent[a]); {
		case now > 0 && !before:
			s.log.Warn("a node does not answer health checks; it gets no new connections while others do", "address", a)
		case now == 0 && before:
			s.log.Info("a node answers health checks again", "address", a)
		}
		if len(s.silent[a]) == 0 {
			delete(s.silent, a)
		}
	}
}
