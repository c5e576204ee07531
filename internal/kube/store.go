package kube

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/networkpolicy"
	"github.com/fairway-net/fairway/internal/service"
)

// Config says what a Store reads. Log, Client and, on a node, NodeName are required.
type Config struct {
	Log    *slog.Logger
	Client kubernetes.Interface // from Connect
	// Custom reads custom resources, and LoadBalancerNamespace is where those of metallb.io
	// count. Nil: there are none.
	Custom                dynamic.Interface // from ConnectCustom
	LoadBalancerNamespace string
	// NodeName is the node we run on.
	NodeName string
	// AllNodes watches every node instead of this one: routes to the pods of other nodes
	// need their podCIDRs.
	AllNodes bool
	// EmptyAfter is how long the API server must say that most objects of a kind are gone,
	// before they are; 0: once is enough. It is about lists; a watch that says that one
	// object is gone is believed.
	EmptyAfter time.Duration
	// Problem is told, once, that a list is doubted. Nil: it is only logged.
	Problem func(api.Name, api.Problem)
}

// A Store knows the objects of a cluster, as the API server last sent them, and hands
// them to subscribers. It reads a kind from its first subscription on.
// Its methods may be called by any goroutine.
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
	ranges   *Feed[serviceRange]
	metallb  metallb
	// What NetworkPolicies are about.
	policies   *Feed[networkpolicy.Policy]
	namespaces *Feed[api.Namespace]
	pods       *Feed[api.Pod]

	lastNode atomic.Pointer[Node] // the one we run on, as it was last; nil: not known yet

	// What Run must start. mu is never held together with a lock of a feed or a
	// subscription.
	mu            sync.Mutex
	starts        []func(context.Context)
	read          []input // the kinds that have subscriptions
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
	s.services = open(s, servicesKind(client))
	s.slices = open(s, slicesKind(client))
	s.nodes = open(s, s.nodesKind(client))
	s.nodes.followers = append(s.nodes.followers, s.ownNodeChanged)
	s.ranges = open(s, rangesKind(client))
	if cfg.Custom != nil {
		s.metallb = openMetallb(s)
	}
	s.policies = open(s, policiesKind(client))
	s.namespaces = open(s, namespacesKind(client))
	s.pods = open(s, policyPodsKind(client))
	return s
}

// open makes the feed of a kind. Its reflector starts with the first subscriber.
func open[O metav1.Object, V any](s *Store, k kind[O, V]) *Feed[V] {
	f := newFeed(s.cfg.Log, k)
	if s.cfg.EmptyAfter > 0 {
		f.guard = s.newGuard(k.name)
	}
	f.start = sync.OnceFunc(func() { s.start(f.input(), newReflector(s, k, f).RunWithContext) })
	return f
}

// start lets Run start what reads a kind; run ends with its context.
func (s *Store) start(kind input, run func(context.Context)) {
	s.mu.Lock()
	s.read = append(s.read, kind)
	s.starts = append(s.starts, run)
	s.mu.Unlock()
	select {
	case s.pending <- struct{}{}:
	default:
	}
}

// Run reads what is subscribed to until ctx ends, which is no error. A server that cannot
// be reached is logged and tried again.
func (s *Store) Run(ctx context.Context) error {
	// A pacer has logged each failed try, in one line.
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
func (s *Store) inputs() []input {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.read)
}
