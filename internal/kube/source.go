package kube

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/fairway-net/fairway/internal/service"
)

// Config says what a Source watches.
type Config struct {
	Log    *slog.Logger
	Client kubernetes.Interface // from Connect
	// NodeName is the node we run on.
	NodeName string
	// AllNodes watches every node instead of this one: whoever routes to the pods of
	// other nodes needs their podCIDRs.
	AllNodes bool
}

// A Source knows the Services, the EndpointSlices and the nodes of a cluster, as the
// API server last told. Its methods may be called by any goroutine.
type Source struct {
	cfg     Config
	started time.Time // changes that were caused before are not ours to time

	wake     chan struct{}
	nodeWake chan struct{}
	podWake  chan struct{}
	synced   chan struct{}

	services *feed[serviceRecord]
	slices   *feed[service.Slice]
	nodes    *feed[Node]
	ranges   *feed[serviceRange]

	mu       sync.Mutex
	ready    bool                              // every first list is in
	byOwner  map[service.Name][]*service.Slice // the lists are never changed in place
	dirty    map[service.Name]int64            // changed Services, and their oldest trigger
	triggers map[service.Name]time.Time        // of the last Take
	changes  service.Changes
	// podWatches are there while a Service asks for them.
	podWatches map[podSelector]*podWatch
}

// A serviceRecord is a Service as it is kept.
type serviceRecord struct {
	service.Service
	pods *podSelector // whose weights it asks for
}

// New returns a Source that knows nothing until Run.
func New(cfg Config) *Source {
	s := &Source{
		cfg:      cfg,
		started:  time.Now(),
		wake:     make(chan struct{}, 1),
		nodeWake: make(chan struct{}, 1),
		podWake:  make(chan struct{}, 1),
		synced:   make(chan struct{}),
		byOwner:  map[service.Name][]*service.Slice{},
		dirty:    map[service.Name]int64{},

		podWatches: map[podSelector]*podWatch{},
	}
	s.services = &feed[serviceRecord]{
		src: s, all: map[service.Name]*serviceRecord{}, cut: cutService,
		changed: s.serviceChanged,
	}
	s.slices = &feed[service.Slice]{
		src: s, all: map[service.Name]*service.Slice{}, cut: cutSlice,
		changed: s.sliceChanged,
	}
	s.nodes = &feed[Node]{
		src: s, all: map[service.Name]*Node{}, cut: cutNode,
		changed:  func(service.Name, *Node, *Node, int64) { s.ring(s.nodeWake) },
		replaced: s.reportNode,
	}
	s.ranges = s.rangeFeed()
	return s
}

func cutService(obj any) (*serviceRecord, int64) {
	o, ok := obj.(*corev1.Service)
	if !ok {
		return nil, 0
	}
	r := &serviceRecord{Service: *ConvertService(o)}
	internService(&r.Service)
	if r.Weighted {
		r.pods = selectorOf(o)
	}
	return r, 0
}

func cutSlice(obj any) (*service.Slice, int64) {
	o, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, 0
	}
	slice := ConvertSlice(o)
	if slice.Service.Name == "" {
		return nil, 0 // made for something else than a Service
	}
	internSlice(slice)
	t, err := time.Parse(time.RFC3339Nano, o.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return slice, 0 // most slices do not have it
	}
	return slice, t.UnixNano()
}

func cutNode(obj any) (*Node, int64) {
	o, ok := obj.(*corev1.Node)
	if !ok {
		return nil, 0
	}
	n := ConvertNode(o)
	return &n, 0
}

// Run watches until ctx ends, which is no error. A server that cannot be reached is
// logged and tried again.
func (s *Source) Run(ctx context.Context) error {
	// client-go logs through the context; its details are debug messages to us.
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(oncePerFailure{s.cfg.Log.Handler()}))
	var wg sync.WaitGroup
	for _, r := range s.reflectors() {
		wg.Go(func() { r.RunWithContext(ctx) })
	}
	wg.Go(func() { s.watchRanges(ctx) })
	wg.Go(func() { s.watchPods(ctx) })
	wg.Wait()
	return nil
}

// Synced is closed when every first list is in.
func (s *Source) Synced() <-chan struct{} { return s.synced }

// Dirty wakes whoever should call Take. One wake-up may stand for many changes.
func (s *Source) Dirty() <-chan struct{} { return s.wake }

// NodeChanged wakes whoever should call Node, Nodes and ServiceCIDRs again.
func (s *Source) NodeChanged() <-chan struct{} { return s.nodeWake }

// Take returns the names of the Services that have changed since the last Take, or
// whose endpoints have, sorted; a Service that is gone is among them. It returns none
// before Synced.
func (s *Source) Take() []service.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return nil
	}
	names := make([]service.Name, 0, len(s.dirty))
	s.triggers = map[service.Name]time.Time{}
	for name, trigger := range s.dirty {
		names = append(names, name)
		if trigger != 0 {
			s.triggers[name] = time.Unix(0, trigger)
		}
	}
	s.dirty = map[service.Name]int64{}
	s.changes.ServicesPending, s.changes.EndpointsPending = 0, 0
	slices.SortFunc(names, service.Name.Compare)
	return names
}

// Changes counts what the API server told.
func (s *Source) Changes() service.Changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// Triggers returns, for the Services of the last Take, when somebody caused the oldest
// change of their endpoints: where the time to program it starts (kube-proxy's
// network_programming_duration). Services of which nobody knows are left out, and so
// are changes caused before this program started.
func (s *Source) Triggers() map[service.Name]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.triggers
}

// Service returns the Service of that name, if there is one.
func (s *Source) Service(name service.Name) (*service.Service, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.services.all[name]
	if !ok {
		return nil, false
	}
	return &r.Service, true
}

// Slices returns the EndpointSlices of the Service of that name, with the weights of its
// pods if it asks for them. The caller must not change the list.
func (s *Source) Slices(name service.Name) []*service.Slice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.weigh(name, s.byOwner[name])
}

// Node returns the node we run on, if the API server knows it.
func (s *Source) Node() (Node, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.nodes.all[service.Name{Name: s.cfg.NodeName}]
	if !ok {
		return Node{}, false
	}
	return *n, true
}

// Nodes returns all nodes that are watched, sorted by name.
func (s *Source) Nodes() []Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Node, 0, len(s.nodes.all))
	for _, n := range s.nodes.all {
		out = append(out, *n)
	}
	slices.SortFunc(out, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// sliceChanged keeps the index by Service. A slice may move to another Service: its
// label can be edited.
func (s *Source) sliceChanged(_ service.Name, old, new *service.Slice, trigger int64) {
	s.changes.Endpoints++
	s.changes.EndpointsPending++
	if old != nil {
		rest := slices.DeleteFunc(slices.Clone(s.byOwner[old.Service]), func(o *service.Slice) bool { return o == old })
		if len(rest) == 0 {
			delete(s.byOwner, old.Service)
		} else {
			s.byOwner[old.Service] = rest
		}
		s.mark(old.Service, 0)
		if new == nil {
			s.dirty[old.Service] = 0 // kube-proxy does not time deletions either
		}
	}
	if new != nil {
		list := s.byOwner[new.Service]
		s.byOwner[new.Service] = append(list[:len(list):len(list)], new)
		s.mark(new.Service, trigger)
	}
}

// mark notes that a Service must be looked at again. s.mu is held.
func (s *Source) mark(name service.Name, trigger int64) {
	if trigger <= s.started.UnixNano() {
		trigger = 0
	}
	if was := s.dirty[name]; trigger == 0 || was != 0 && was < trigger {
		trigger = was
	}
	s.dirty[name] = trigger
	s.ring(s.wake)
}

// ring wakes the reader of c, who may be busy: one waiting wake-up is enough. s.mu is
// held.
func (s *Source) ring(c chan struct{}) {
	if !s.ready {
		return // firstList will
	}
	select {
	case c <- struct{}{}:
	default:
	}
}

// firstList opens the gate when the first list of every kind is in.
func (s *Source) firstList() {
	s.mu.Lock()
	done := !s.ready && s.services.listed && s.slices.listed && s.nodes.listed && s.ranges.listed && s.podsListed()
	if done {
		s.ready = true
		s.ring(s.wake)
		s.ring(s.nodeWake)
	}
	services, all, nodes := len(s.services.all), len(s.slices.all), len(s.nodes.all)
	_, known := s.nodes.all[service.Name{Name: s.cfg.NodeName}]
	s.mu.Unlock()
	if !done {
		return
	}
	s.cfg.Log.Info("read the cluster's first lists", "services", services, "endpointSlices", all, "nodes", nodes)
	if !known {
		s.cfg.Log.Warn("the API server does not know our node (is --hostname-override right?); no endpoint counts as local until it does",
			"node", s.cfg.NodeName)
	}
	close(s.synced)
}

// reportNode logs what we could not read of a node.
func (s *Source) reportNode(n *Node) {
	for _, p := range n.Problems {
		s.cfg.Log.Warn("a part of a node makes no sense", "node", n.Name, "reason", p.Reason, "problem", p.Message)
	}
}
