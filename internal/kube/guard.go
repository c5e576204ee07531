package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		problem: s.cfg.Problem, noteKept: keeps, delayNext: func(time.Duration) {},
	}
}

// believe reports whether the objects that a list lacks are gone. The feed has had objects, and the list
// has kept of them.
func (g *guard) believe(had, kept int) (believed bool) {
	doubted := g.brake.Holds()
	believed = g.brake.Believe(time.Now(), had, kept)
	log := g.log.With("kind", g.kind, "had", had, "missing", had-kept)
	switch {
	case !believed && !doubted:
		log.Error("the API server's list lacks most objects; they are kept, and the agent lists again "+
			"[was the API server restored, or is --master wrong? --empty-after sets the time]", "for", g.brake.Bound)
		g.problem(api.Name{Namespace: metav1.NamespaceDefault, Name: kubernetesService}, api.Problem{
			Reason: "ListLostObjects", Message: fmt.Sprintf("the API server's list of %s lacks most objects; nodes keep them for %v", g.kind, g.brake.Bound),
		})
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
	return believed
}

// kubernetesService is the name of the API server's own Service in the namespace default.
const kubernetesService = "kubernetes"
