package kube

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// Config is the configuration of a Store. Log, Client and, on a node, NodeName are required.
type Config struct {
	Log    *slog.Logger
	Client kubernetes.Interface // from Connect
	// Custom reads custom resources; nil: there are no custom resources. LoadBalancerNamespace is the only namespace
	// whose metallb.io objects count.
	Custom                dynamic.Interface // from ConnectCustom
	LoadBalancerNamespace string
	// NodeName is our own node.
	NodeName string
	// AllNodes watches every node instead of our own node. Routes to the pods of other nodes need the podCIDRs of these
	// nodes.
	AllNodes bool
	// PodNetwork says that the pods' addresses come from their nodes' podCIDRs, and needs AllNodes. ClusterCIDRs are the
	// ranges of all podCIDRs; empty: not configured.
	PodNetwork   bool
	ClusterCIDRs []netip.Prefix
	// EmptyAfter is the time for which the API server must repeat that most objects of a kind are gone, before the
	// Store believes it; 0: once is enough. A watch that deletes an object is believed at once.
	EmptyAfter time.Duration
	// Problem receives the first doubt about a list. It may be nil.
	Problem func(api.Name, api.Problem)
}

// A Store keeps the objects of a cluster, as the API server last sent them, and hands them to subscribers. It reads a
// kind from the kind's first subscription on. Its methods may be called by any goroutine.
type Store struct {
	cfg     Config
	started time.Time
	metrics *metrics
	server  *server
	// troubles are the kinds that cannot be read now.
	troubles troubles

	services *Feed[service.Service]
	slices   *Feed[service.Slice]
	nodes    *Feed[Node]
	ranges   *Feed[ServiceRange]
	pods     *Feed[api.Pod]

	lastNode atomic.Pointer[Node] // the last state of our own node; nil: not known yet

	claimsOnce sync.Once
	claims     *Claims // of nodes; nil: nobody has asked

	// mu guards the kinds that Run must start. It is never held together with a lock of a feed or a subscription.
	mu            sync.Mutex
	starts        []func(context.Context)
	read          []Input // the kinds with subscriptions
	pending       chan struct{}
	subscriptions []*Subscription
}

// New returns a Store that reads nothing until Run.
func New(cfg Config) *Store {
	if cfg.Problem == nil {
		cfg.Problem = func(api.Name, api.Problem) {}
	}
	client := cfg.Client
	s := &Store{cfg: cfg, started: time.Now(), metrics: newMetrics(), pending: make(chan struct{}, 1), server: newServer()}
	s.services = Open(s, servicesKind(client))
	s.slices = Open(s, SlicesKind(client))
	s.nodes = Open(s, s.nodesKind(client))
	s.nodes.followers = append(s.nodes.followers, s.ownNodeChanged)
	s.ranges = Open(s, rangesKind(client))
	s.pods = Open(s, podsKind(client))
	return s
}

// Config returns the configuration.
func (s *Store) Config() Config { return s.cfg }

// ServiceFeed returns the feed of the Services that need a service proxy.
func (s *Store) ServiceFeed() *Feed[service.Service] { return s.services }

// SliceFeed returns the feed of the EndpointSlices. Their owners are Services.
func (s *Store) SliceFeed() *Feed[service.Slice] { return s.slices }

// NodeFeed returns the feed of the nodes: all nodes, or our own node only (Config.AllNodes).
func (s *Store) NodeFeed() *Feed[Node] { return s.nodes }

// RangeFeed returns the feed of the ServiceCIDRs.
func (s *Store) RangeFeed() *Feed[ServiceRange] { return s.ranges }

// PodFeed returns the feed of all pods.
func (s *Store) PodFeed() *Feed[api.Pod] { return s.pods }

// Open makes the feed of a kind. Its reflector starts with the first subscriber.
func Open[O metav1.Object, V any](s *Store, k Kind[O, V]) *Feed[V] {
	f := newFeed(s.cfg.Log, k)
	if s.cfg.EmptyAfter > 0 {
		f.guard = s.newGuard(k.Name)
	}
	f.start = sync.OnceFunc(func() { s.start(f.Input(), newReflector(s, k, f).RunWithContext) })
	return f
}

// start makes Run call run, which reads a kind until its context ends.
func (s *Store) start(kind Input, run func(context.Context)) {
	s.mu.Lock()
	s.read = append(s.read, kind)
	s.starts = append(s.starts, run)
	s.mu.Unlock()
	select {
	case s.pending <- struct{}{}:
	default:
	}
}

// Run reads the subscribed kinds until ctx ends, which is no error. It logs and retries requests to a server that it
// cannot reach.
func (s *Store) Run(ctx context.Context) error {
	// The pacers log each failure in one line.
	ctx = klog.NewContext(ctx, quietly(s.cfg.Log, func(message string) bool { return message == "Failed to watch" }))
	var wg sync.WaitGroup
	defer func() {
		wg.Wait()
		s.mu.Lock()
		subscriptions := slices.Clone(s.subscriptions)
		s.mu.Unlock()
		for _, sub := range subscriptions {
			sub.stop()
		}
	}()
	for {
		s.mu.Lock()
		starts := s.starts
		s.starts = nil
		s.mu.Unlock()
		for _, run := range starts {
			wg.Go(func() { run(ctx) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.pending:
		}
	}
}

// inputs returns the kinds that are read.
func (s *Store) inputs() []Input {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.read)
}
