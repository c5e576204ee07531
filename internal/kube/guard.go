package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// errUnconfirmed tells the reflector that a list was not taken over, so that it lists again.
var errUnconfirmed = errors.New("the list lacks most of what there was")

// maxRetryPause is the most that is waited before a doubted list is asked for again, and with
// it how long a node waits for the right one. A list that lacks most objects is short.
const maxRetryPause = 3 * time.Second

// A guard keeps what a feed has when a later list lacks most of it, or is another cluster's,
// until the API server has said the same for Config.EmptyAfter. It belongs to the goroutine
// of the feed's reflector. A cluster always has something of each kind that is read (the API
// server's own Service and its slice, this node, the ServiceCIDR kubernetes), so that an empty
// list is doubted in a small cluster too.
type guard struct {
	log       *slog.Logger
	kind      string
	brake     service.Brake
	pause     time.Duration // before the list is asked for again
	cluster   *clusterID
	problem   func(api.Name, api.Problem)
	noteKept  func(objects int)   // notes how many objects a doubted list lacks
	delayNext func(time.Duration) // makes the reflector wait before its next request
}

func (s *Store) newGuard(kind string) *guard {
	gauge := s.metrics.retained.WithLabelValues(kind)
	keeps := func(objects int) {
		gauge.Set(float64(objects))
		s.troubles.noteKept(kind, objects)
	}
	return &guard{
		log: s.cfg.Log, kind: kind, brake: service.Brake{Bound: s.cfg.EmptyAfter, Some: true}, pause: min(maxRetryPause, s.cfg.EmptyAfter/4),
		cluster: s.cluster, problem: s.cfg.Problem, noteKept: keeps, delayNext: func(time.Duration) {},
	}
}

// believe reports whether what a list lacks is gone: it has kept of had objects. foreign says
// that the list is another cluster's.
func (g *guard) believe(had, kept int) (believed, foreign bool) {
	foreign = kept < had && g.cluster.another()
	doubted := g.brake.Holds()
	believed = g.brake.Believe(time.Now(), had, kept, foreign)
	log := g.log.With("kind", g.kind, "had", had, "missing", had-kept, "anotherCluster", foreign)
	switch {
	case !believed && !doubted:
		log.Error("the API server's list lacks most objects that there were, or is another cluster's; what it lacks is kept, and it is asked again "+
			"[was it restored, or is --master wrong? --empty-after says how long]", "for", g.brake.Bound)
		g.problem(api.Name{Namespace: metav1.NamespaceDefault, Name: kubernetesService}, api.Problem{
			Reason: "ListLostObjects", Message: fmt.Sprintf("the API server's list of %s lacks most objects that there were, or is another cluster's; nodes keep what they had for %v", g.kind, g.brake.Bound),
		})
	case believed && doubted && foreign:
		g.cluster.accept()
		fallthrough
	case believed && doubted && kept < had:
		log.Warn("the API server's list still lacks most objects; they are removed now")
	case believed && doubted:
		log.Info("the API server's list has all objects again")
	}
	if believed {
		g.noteKept(0)
	} else {
		g.noteKept(had - kept)
		g.delayNext(g.pause)
	}
	return believed, foreign
}

// kubernetesService is the name of a Service in the namespace default that an API server
// makes in an empty cluster, and again if it is deleted: its UID is the cluster's.
const kubernetesService = "kubernetes"

// A clusterID tells whether the API server speaks for the cluster that it spoke for at first.
type clusterID struct {
	client kubernetes.Interface

	mu          sync.Mutex
	ctx         context.Context // of Store.Run
	known, last types.UID       // at first, and the last answer; empty: none
}

const (
	clusterTimeout = 5 * time.Second
	clusterAgain   = 30 * time.Second
)

// readUID asks the API server until there is an answer or ctx ends.
func (c *clusterID) readUID(ctx context.Context) {
	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()
	for c.another(); !c.isKnown(); c.another() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(clusterAgain):
		}
	}
}

func (c *clusterID) isKnown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known != ""
}

// another reports whether the API server now speaks for another cluster, or one that is
// being made. Without an answer it is taken for the same.
func (c *clusterID) another() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(c.ctx, clusterTimeout)
	defer cancel()
	svc, err := c.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, kubernetesService, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		c.last = ""
	case err != nil:
		return false
	default:
		c.last = svc.UID
	}
	if c.known == "" {
		c.known = c.last
	}
	return c.last != c.known
}

// AnotherCluster reports whether the API server now speaks for another cluster than at
// first, as far as it answers.
func (s *Store) AnotherCluster() bool { return s.cluster.another() }

// accept makes the cluster of the last answer ours.
func (c *clusterID) accept() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = c.last
}
