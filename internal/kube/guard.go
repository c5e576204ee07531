package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairway-net/fairway/internal/api"
)

// errUnconfirmed makes the reflector list again.
var errUnconfirmed = errors.New("the list lacks most objects")

// maxRetryPause is the longest pause before a doubted list is asked for again. This request is cheap, because a list
// that lacks most objects is short.
const maxRetryPause = 3 * time.Second

// A guard keeps the objects of a feed when a later list lacks most of them, until the API server has repeated this for
// Config.EmptyAfter. It belongs to the goroutine of the feed's reflector. The API server itself always has at least one
// object of each kind (its own Service and EndpointSlice, the ServiceCIDR kubernetes), so a nearly empty list is
// doubted in a small cluster too.
type guard struct {
	log       *slog.Logger
	kind      string
	brake     api.Brake
	pause     time.Duration // before the next list
	problem   func(api.Name, api.Problem)
	noteKept  func(objects int)   // stores the number of objects that a doubted list lacks
	delayNext func(time.Duration) // delays the reflector's next request
}

func (s *Store) newGuard(kind string) *guard {
	gauge := s.metrics.retained.WithLabelValues(kind)
	keeps := func(objects int) {
		gauge.Set(float64(objects))
		s.troubles.noteKept(kind, objects)
	}
	return &guard{
		log: s.cfg.Log, kind: kind, brake: api.Brake{Bound: s.cfg.EmptyAfter, Some: true}, pause: min(maxRetryPause, s.cfg.EmptyAfter/4),
		problem: s.cfg.Problem, noteKept: keeps, delayNext: func(time.Duration) {},
	}
}

// believe reports whether the objects that a list lacks are gone. had is the number of objects in the feed, kept the
// number of these objects in the list.
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
