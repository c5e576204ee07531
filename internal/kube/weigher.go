package kube

import (
	"context"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applydiscoveryv1 "k8s.io/client-go/applyconfigurations/discovery/v1"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Weigher writes the weights of pods into the EndpointSlices of the Services that ask for weights, once for all nodes
// (docs/decisions/0015). Only the elected controller runs it. It never writes a correct slice.
type Weigher struct {
	sub    *Subscription
	store  *Store
	pods   *Feed[PodWeight]
	report func(api.Name, []api.Problem)
	writer *StatusWriter[string]

	// mu may be taken while the lock of a feed is held. No lock of a feed may be taken while mu is held.
	mu    sync.Mutex
	users map[string]map[api.Name]bool // by namespace: the Services that ask for weights
}

// weigherName is the field manager of the annotation.
const weigherName = "fairway-weights"

// NewWeigher returns a Weigher on a store, which must run too. report receives the problems of each Service that asks
// for weights. ofPod receives the problems of pods, whose annotations are read here only.
func NewWeigher(log *slog.Logger, s *Store, report func(api.Name, []api.Problem), ofPod func(pod api.Name, uid string, p api.Problem)) *Weigher {
	pods := podReporter{report: ofPod}
	w := &Weigher{sub: s.Subscribe("weights"), store: s, report: report, users: map[string]map[api.Name]bool{}}
	w.writer = NewStatusWriter(StatusConfig[string]{
		Log: log, Owner: weigherName, Kind: "endpointslices", Apply: w.apply,
		Have: func(name api.Name) (string, bool) {
			slice, ok := s.slices.Get(name)
			if !ok {
				return "", false
			}
			return formatWeights(slice), true
		},
	})
	w.pods = Open(s, Kind[*corev1.Pod, PodWeight]{
		Name: "pods", Object: &corev1.Pod{}, Client: From(s.cfg.Client.CoreV1().Pods(metav1.NamespaceAll)),
		Trim: func(o *corev1.Pod) *PodWeight { pods.check(o); return ConvertPod(o) },
		Only: metav1.ListOptions{FieldSelector: "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)},
	})
	s.services.Follow(w.serviceChanged)
	s.slices.Follow(w.sliceChanged)
	w.pods.Follow(w.podChanged)
	w.sub.Need([]Input{s.services.Gates(w.sub), s.slices.Gates(w.sub), w.pods.Gates(w.sub)}, nil)
	return w
}

func (w *Weigher) apply(ctx context.Context, name api.Name, want string, how metav1.ApplyOptions) error {
	o := applydiscoveryv1.EndpointSlice(name.Name, name.Namespace)
	if want != "" {
		o.WithAnnotations(map[string]string{AnnotationEndpointWeights: want})
	}
	_, err := w.store.cfg.Client.DiscoveryV1().EndpointSlices(name.Namespace).Apply(ctx, o, how)
	return err
}

func (w *Weigher) serviceChanged(name api.Name, old, new *service.Service, _ int64) {
	was, is := old != nil && old.Weighted, new != nil && new.Weighted
	if !was && !is {
		return
	}
	w.mu.Lock()
	users := w.users[name.Namespace]
	switch {
	case is && users == nil:
		w.users[name.Namespace] = map[api.Name]bool{name: true}
	case is:
		users[name] = true
	default:
		if delete(users, name); len(users) == 0 {
			delete(w.users, name.Namespace)
		}
	}
	w.mu.Unlock()
	w.sub.Mark(name, 0)
}

func (w *Weigher) sliceChanged(name api.Name, old, new *service.Slice, _ int64) {
	if new == nil {
		w.writer.Forget(name)
	}
	for _, s := range []*service.Slice{old, new} {
		if s != nil {
			w.sub.Mark(s.Service, 0)
		}
	}
}

// podChanged marks the Services of the pod's namespace that ask for weights. Their slices show the pod's Service.
func (w *Weigher) podChanged(pod api.Name, _, _ *PodWeight, _ int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.users[pod.Namespace] {
		w.sub.Mark(name, 0)
	}
}

// Run keeps the slices' weights equal to the pods' weights, until ctx ends, which is no error.
func (w *Weigher) Run(ctx context.Context) error {
	return w.sub.Decide(ctx, w.writer, func(names []api.Name) {
		for _, name := range names {
			w.weigh(name)
		}
	})
}

// weigh queues the weights of a Service's slices. A Service that does not ask for weights has no weights.
func (w *Weigher) weigh(name api.Name) {
	svc, ok := w.store.services.Get(name)
	asks := ok && svc.Weighted
	var bad []api.Problem
	for _, slice := range w.store.slices.Of(name) {
		if slice.Pods == (service.PodNames{}) && len(slice.Endpoints) > 0 {
			w.writer.Forget(slice.Name) // the weights of a Gateway's backends, which another writer knows
			continue
		}
		switch have := formatWeights(slice); {
		case asks:
			weighed, wrong := withWeights(slice, w.pods.Get, maxWeightProblems-len(bad))
			bad = append(bad, wrong...)
			w.writer.Set(slice.Name, formatWeights(weighed))
		case have != "":
			w.writer.Set(slice.Name, "")
		default:
			w.writer.Forget(slice.Name)
		}
	}
	w.report(name, bad)
}
