package gateway

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
	oneline "github.com/fairway-net/fairway/internal/text"
)

const (
	// fetchAge is the longest pause between two reads of a Secret or a ConfigMap. The pause begins with fetchTick, and doubles
	// while the object stays the same: an object that has just changed, or has just been named and is absent, is likely to change.
	fetchAge = time.Minute
	// fetchTick and fetchesPerTick bound the repeated reads: 1,200 objects a minute. More objects are read less often.
	fetchTick      = time.Second
	fetchesPerTick = 20
	// fetchWorkers read newly named objects at the same time.
	fetchWorkers = 8
	fetchTimeout = 10 * time.Second
)

// A fetcher reads Secrets and ConfigMaps by name: at once after they are wanted, after one second, two, four, and then every
// minute. So it needs no right to list them. Namespaces take turns. Its methods may be called by any goroutine.
type fetcher struct {
	log     *slog.Logger
	client  kubernetes.Interface
	changed func(gateway.Ref) // without a lock
	now     func() time.Time

	mu      sync.Mutex
	objects map[gateway.Ref]*fetched // the wanted objects
	queue   *fair.Queue[gateway.Ref]
	wake    chan struct{} // receives when the queue is not empty
}

// fetched is one wanted object.
type fetched struct {
	object gateway.Object // nil: absent, or not read yet
	at     time.Time      // of the last attempt; zero: none
	pause  time.Duration  // until the next attempt
	queued bool
	failed bool // the last attempt failed and was logged
}

func newFetcher(log *slog.Logger, client kubernetes.Interface, changed func(gateway.Ref)) *fetcher {
	return &fetcher{
		log: log, client: client, changed: changed, now: time.Now, objects: map[gateway.Ref]*fetched{},
		queue: fair.NewQueue(func(r gateway.Ref) string { return r.Namespace }), wake: make(chan struct{}, 1),
	}
}

// want sets the wanted objects. It reports whether all of them have been tried. After each result, changed is called.
func (f *fetcher) want(needs gateway.Needs) (settled bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wanted := make(map[gateway.Ref]bool, len(needs.Secrets)+len(needs.ConfigMaps))
	for kind, names := range map[gateway.Kind][]api.Name{gateway.KindSecret: needs.Secrets, gateway.KindConfigMap: needs.ConfigMaps} {
		for _, name := range names {
			wanted[gateway.Ref{Kind: kind, Name: name}] = true
		}
	}
	for ref := range f.objects {
		if !wanted[ref] {
			delete(f.objects, ref)
		}
	}
	settled = true
	for ref := range wanted {
		o := f.objects[ref]
		if o == nil {
			o = &fetched{}
			f.objects[ref] = o
			f.push(ref, o)
		}
		settled = settled && !o.at.IsZero()
	}
	return settled
}

// push queues an object. f.mu is held.
func (f *fetcher) push(ref gateway.Ref, o *fetched) {
	if o.queued {
		return
	}
	o.queued = true
	f.queue.Push(ref)
	f.wakeOne()
}

func (f *fetcher) wakeOne() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// get returns an object; nil: absent, or not read yet.
func (f *fetcher) get(ref gateway.Ref) gateway.Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.objects[ref]; o != nil {
		return o.object
	}
	return nil
}

// Run reads objects until ctx ends, which is no error.
func (f *fetcher) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer workers.Wait()
	for range fetchWorkers {
		workers.Go(func() { f.work(ctx) })
	}
	tick := time.NewTicker(fetchTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			f.refresh()
		}
	}
}

// refresh queues some of the objects that are due.
func (f *fetcher) refresh() {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for ref, o := range f.objects {
		if n == fetchesPerTick {
			return
		}
		if !o.queued && f.now().Sub(o.at) >= o.pause {
			f.push(ref, o)
			n++
		}
	}
}

func (f *fetcher) work(ctx context.Context) {
	for {
		ref, ok := f.next()
		if !ok {
			select {
			case <-ctx.Done():
				return
			case <-f.wake:
			}
			continue
		}
		object, err := f.read(ctx, ref)
		if ctx.Err() != nil {
			return
		}
		f.store(ref, object, err)
	}
}

// next takes an object from the queue, and wakes another worker if the queue is not empty.
func (f *fetcher) next() (gateway.Ref, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.queue.Len() > 0 {
		ref := f.queue.Pop()
		if f.queue.Len() > 0 {
			f.wakeOne()
		}
		if o := f.objects[ref]; o != nil {
			return ref, true
		}
	}
	return gateway.Ref{}, false
}

// read reads an object from the API server; nil without an error: it is absent.
func (f *fetcher) read(ctx context.Context, ref gateway.Ref) (gateway.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	if ref.Kind == gateway.KindSecret {
		o, err := f.client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name.Name, metav1.GetOptions{})
		if err != nil {
			return nil, kube.NotGone(err)
		}
		return convertSecret(o), nil
	}
	o, err := f.client.CoreV1().ConfigMaps(ref.Namespace).Get(ctx, ref.Name.Name, metav1.GetOptions{})
	if err != nil {
		return nil, kube.NotGone(err)
	}
	return convertConfigMap(o), nil
}

// store keeps the result of an attempt. After a failure the object stays as it was.
func (f *fetcher) store(ref gateway.Ref, object gateway.Object, err error) {
	f.mu.Lock()
	o := f.objects[ref]
	if o == nil {
		f.mu.Unlock()
		return
	}
	logged := err != nil && !o.failed
	news := o.at.IsZero() || err == nil && !reflect.DeepEqual(o.object, object)
	o.at, o.queued, o.failed = f.now(), false, err != nil
	o.pause = min(2*o.pause, fetchAge)
	if news {
		o.pause = fetchTick
	}
	if err == nil {
		o.object = object
	}
	f.mu.Unlock()
	if logged {
		f.log.Warn("cannot read an object that a Gateway, a route or an Ingress names; it is tried again within a minute",
			"kind", string(ref.Kind), "name", ref.Name.String(), "err", oneline.RequestError(err))
	}
	if news {
		f.changed(ref)
	}
}
