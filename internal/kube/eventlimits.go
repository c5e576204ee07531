package kube

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"

	"github.com/fairway-net/fairway/internal/api"
)

// The limits of events, because each event costs two requests on every node: the first events at once, then one event
// after each pause. An object has the limits of client-go's event correlator. A namespace has limits too, because its
// tenant can create new objects without end.
const (
	objectEvents    = 25
	objectPause     = 5 * time.Minute
	namespaceEvents = 2000
	namespacePause  = time.Minute
	// limitedObjects is the number of objects, and of namespaces, whose events are counted.
	limitedObjects = 4096
)

// eventLimits bounds the events about each object and each namespace. It is not safe for concurrent use.
type eventLimits struct {
	objects, namespaces *lru.Cache
}

// eventSubject is the object of an event. Objects of different kinds may have one name.
type eventSubject struct {
	name api.Name
	kind string
}

// An eventBucket has the tokens of an object or a namespace.
type eventBucket struct {
	tokens *rate.Limiter
	empty  bool // at the last event
}

func newEventLimits() *eventLimits {
	return &eventLimits{objects: lru.New(limitedObjects), namespaces: lru.New(limitedObjects)}
}

// allow reports whether an event is within the limits. first means that it is the first event that is not.
func (l *eventLimits) allow(rep report) (ok, first bool) {
	object := bucketOf(l.objects, eventSubject{rep.name, rep.subject.kind}, objectEvents, objectPause)
	if ok, first = object.take(); ok {
		ok, first = bucketOf(l.namespaces, rep.name.Namespace, namespaceEvents, namespacePause).take()
	}
	return ok, first
}

func bucketOf(all *lru.Cache, key any, burst int, pause time.Duration) *eventBucket {
	if b, ok := all.Get(key); ok {
		return b.(*eventBucket)
	}
	b := &eventBucket{tokens: rate.NewLimiter(rate.Every(pause), burst)}
	all.Add(key, b)
	return b
}

func (b *eventBucket) take() (ok, first bool) {
	ok = b.tokens.Allow()
	first = !ok && !b.empty
	b.empty = !ok
	return ok, first
}
