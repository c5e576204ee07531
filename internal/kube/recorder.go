package kube

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/api/fair"
	"github.com/fairway-net/fairway/internal/service"
)

const (
	controllerName = "fairway"
	// noteLimit is the API server's limit for an event's text, in bytes.
	noteLimit = 1024
	// queueLimit bounds the events that wait for a slow API server.
	queueLimit = 1000
	// eventTries and eventPause suit an API server that is restarting.
	eventTries = 4
	eventPause = time.Second
	// eventTimeout keeps one request from delaying the queue.
	eventTimeout = 10 * time.Second
	// passingFor is how long a problem that usually passes must last until it is reported.
	passingFor = 30 * time.Second
)

// passing are the reasons of problems that usually pass within a moment.
var passing = []string{service.ReasonWeightsUnavailable}

// A heldProblem is a problem of a Service that may pass.
type heldProblem struct {
	problem api.Problem
	until   time.Time // then it is reported
}

// A Recorder reports problems to the owners of Services, pods and nodes: as Kubernetes events and as log lines, each
// problem once while it lasts. It never makes its caller wait. It bounds the events of each object, and sends the events
// of all namespaces in turn.
//
// An event's name follows from the object and the problem, not from the node. When 5,000 nodes see a problem, there is
// one event. tools/events would make one event for each node, and would merge two problems with one reason.
type Recorder struct {
	log    *slog.Logger
	client kubernetes.Interface
	node   string
	pause  time.Duration // before the second try; doubles
	passes time.Duration // how long a problem may pass unreported

	mu     sync.Mutex
	podID  func(api.Name) string // nil: unknown
	known  map[api.Name][]api.Problem
	held   map[api.Name]heldProblem
	due    time.Time           // when to look at held; zero: nothing is held
	queue  *fair.Queue[report] // by namespace
	limits *eventLimits
	full   bool // an event was dropped since the queue was last empty
	wake   chan struct{}
}

type report struct {
	name    api.Name // a node has no namespace
	problem api.Problem
	subject subject
	uid     types.UID // of the object. Of a Service and of a pod with host ports, it is looked up when the event is sent
	normal  bool      // not a problem
}

// A subject is the kind of object that an event is about, and the action that has the problem. The zero value stands for a
// Service, or a pod with host ports.
type subject struct{ version, kind, action string }

var (
	nodeSubject          = subject{"v1", "Node", "ProgramRoutes"}
	podSubject           = subject{"v1", "Pod", "ReadAnnotations"}
	policySubject        = subject{"networking.k8s.io/v1", "NetworkPolicy", "EnforceNetworkPolicy"}
	clusterPolicySubject = subject{ClusterNetworkPolicies.GroupVersion().String(), "ClusterNetworkPolicy", "EnforceNetworkPolicy"}
)

// NewRecorder returns a Recorder for the agent on a node. Events are sent by Run.
func NewRecorder(log *slog.Logger, client kubernetes.Interface, node string) *Recorder {
	return &Recorder{
		log: log, client: client, node: node, pause: eventPause, passes: passingFor,
		known: map[api.Name][]api.Problem{}, held: map[api.Name]heldProblem{}, limits: newEventLimits(),
		queue: fair.NewQueue(func(r report) string { return r.name.Namespace }),
		wake:  make(chan struct{}, 1),
	}
}

// Report takes the current problems of a Service; no problems if it is fine or gone. It does not repeat the problems of
// the last Report. A problem that exceeds the limits is reported by a later Report. A problem that usually passes is
// reported if it lasts.
func (r *Recorder) Report(name api.Name, now []api.Problem) {
	var known, fresh []api.Problem
	var limit exceeded
	r.mu.Lock()
	if h, ok := r.held[name]; ok && !slices.Contains(now, h.problem) {
		delete(r.held, name)
	}
	for _, p := range now {
		switch {
		case slices.Contains(fresh, p):
			continue
		case slices.Contains(passing, p.Reason) && !slices.Contains(r.known[name], p):
			r.hold(name, p)
			continue
		case slices.Contains(r.known[name], p):
		case r.add(report{name: name, problem: p}, &limit):
			fresh = append(fresh, p)
		default:
			continue
		}
		known = append(known, p)
	}
	if len(known) == 0 {
		delete(r.known, name)
	} else {
		r.known[name] = known
	}
	r.mu.Unlock()
	for _, p := range fresh {
		r.logProblem(name, p)
	}
	r.queued(name, limit)
}

func (r *Recorder) logProblem(name api.Name, p api.Problem) {
	r.log.Warn(problemText(name, p), "service", name.String(), "reason", p.Reason, "problem", p.Message)
}

// hold keeps a problem for a while. r.mu is held.
func (r *Recorder) hold(name api.Name, p api.Problem) {
	if _, ok := r.held[name]; ok {
		return
	}
	until := time.Now().Add(r.passes)
	r.held[name] = heldProblem{p, until}
	if r.due.IsZero() {
		r.due = until
	}
}

// release reports the held problems that have lasted. It returns when the next one is due; zero: none is held.
func (r *Recorder) release() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.due.IsZero() || now.Before(r.due) {
		return r.due
	}
	var limit exceeded
	r.due = time.Time{}
	for name, h := range r.held {
		if now.Before(h.until) {
			if r.due.IsZero() || h.until.Before(r.due) {
				r.due = h.until
			}
			continue
		}
		delete(r.held, name)
		if r.add(report{name: name, problem: h.problem}, &limit) {
			r.known[name] = append(r.known[name], h.problem)
			r.logProblem(name, h.problem)
		}
	}
	return r.due
}

// Event queues an event about one problem. The caller has logged the problem, and calls Event once for it.
func (r *Recorder) Event(name api.Name, p api.Problem) {
	r.push(report{name: name, problem: p})
}

// NodeEvent is Event for a problem of a node. kubectl describe shows a node's events with its UID, or with its name as UID,
// as the kubelet writes them.
func (r *Recorder) NodeEvent(node, reason, message string) {
	r.push(report{name: api.Name{Name: node}, problem: api.Problem{Reason: reason, Message: message}, subject: nodeSubject, uid: types.UID(node)})
}

// NodeInform is NodeEvent for good news.
func (r *Recorder) NodeInform(node, reason, message string) {
	r.push(report{name: api.Name{Name: node}, problem: api.Problem{Reason: reason, Message: message}, subject: nodeSubject, uid: types.UID(node), normal: true})
}

// PolicyEvent is Event for a problem of a NetworkPolicy or, without namespace, of a ClusterNetworkPolicy.
func (r *Recorder) PolicyEvent(name api.Name, uid, reason, message string) {
	s := policySubject
	if name.Namespace == "" {
		s = clusterPolicySubject
	}
	r.push(report{name: name, uid: types.UID(uid), problem: api.Problem{Reason: reason, Message: message}, subject: s})
}

// PodEvent is Event for a problem of a Pod.
func (r *Recorder) PodEvent(name api.Name, uid string, p api.Problem) {
	r.push(report{name: name, uid: types.UID(uid), problem: p, subject: podSubject})
}

// RouteEvent is Event for a problem of an object of Gateway API, or of an Ingress.
func (r *Recorder) RouteEvent(about corev1.ObjectReference, p api.Problem) {
	r.push(report{name: api.Name{Namespace: about.Namespace, Name: about.Name}, uid: about.UID, problem: p, subject: subject{about.APIVersion, about.Kind, "ServeRoutes"}})
}

// NameEvent is Event for a problem of an object's DNS names outside the cluster.
func (r *Recorder) NameEvent(about corev1.ObjectReference, p api.Problem) {
	r.push(report{name: api.Name{Namespace: about.Namespace, Name: about.Name}, uid: about.UID, problem: p, subject: subject{about.APIVersion, about.Kind, "PublishNames"}})
}

// Inform is Event for good news.
func (r *Recorder) Inform(name api.Name, reason, message string) {
	r.push(report{name: name, problem: api.Problem{Reason: reason, Message: message}, normal: true})
}

// IdentifyPods sets the function that finds the UID of a pod with host ports. The agents have no right to read pods.
func (r *Recorder) IdentifyPods(uid func(api.Name) string) {
	r.mu.Lock()
	r.podID = uid
	r.mu.Unlock()
}

func (r *Recorder) podUID(pod api.Name) types.UID {
	r.mu.Lock()
	uid := r.podID
	r.mu.Unlock()
	if uid == nil {
		return ""
	}
	return types.UID(uid(pod))
}

func (r *Recorder) push(rep report) {
	var limit exceeded
	r.mu.Lock()
	r.add(rep, &limit)
	r.mu.Unlock()
	r.queued(rep.name, limit)
}

// exceeded says which limits are to be logged.
type exceeded struct{ ofObject, ofQueue bool }

// add queues an event, and reports whether its object and namespace may have it. r.mu is held.
func (r *Recorder) add(rep report, limit *exceeded) bool {
	ok, first := r.limits.allow(rep)
	if !ok {
		limit.ofObject = limit.ofObject || first
		return false
	}
	r.queue.Push(rep)
	if r.queue.Len() > queueLimit {
		r.queue.Drop()
		limit.ofQueue = limit.ofQueue || !r.full
		r.full = true
	}
	return true
}

// queued wakes Run, and logs the limits that an event about an object exceeded.
func (r *Recorder) queued(about api.Name, limit exceeded) {
	if limit.ofObject {
		r.log.Warn("an object or its namespace changes its problems too often; few of them are reported from now on [correct the objects]",
			"about", about.String(), "object", "one in "+objectPause.String(), "namespace", "one in "+namespacePause.String())
	}
	if limit.ofQueue {
		r.log.Warn("too many events are waiting for the API server; some are only logged", "limit", queueLimit)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run sends events until ctx ends, which is no error.
func (r *Recorder) Run(ctx context.Context) error {
	for {
		due := r.release()
		rep, ok := r.next()
		if !ok {
			var timer <-chan time.Time
			if !due.IsZero() {
				timer = time.After(time.Until(due))
			}
			select {
			case <-ctx.Done():
				return nil
			case <-r.wake:
			case <-timer:
			}
			continue
		}
		if err := r.send(ctx, rep); err != nil && ctx.Err() == nil {
			r.log.Warn("cannot write an event", "about", rep.name.String(), "reason", rep.problem.Reason, "err", err)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (r *Recorder) next() (report, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue.Len() == 0 {
		r.full = false
		return report{}, false
	}
	return r.queue.Pop(), true
}

// send writes one event. An existing event, from any node, is fine. A request that the API server refuses permanently
// is not repeated.
func (r *Recorder) send(ctx context.Context, rep report) error {
	pause := r.pause
	for try := 1; ; try++ {
		err := r.create(ctx, rep)
		switch {
		case err == nil || apierrors.IsAlreadyExists(err):
			return nil
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err), try == eventTries:
			return fmt.Errorf("create event: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause *= 2
	}
}

func (r *Recorder) create(ctx context.Context, rep report) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if rep.subject == (subject{}) {
		rep.uid = r.lookUp(ctx, rep.name)
	}
	e := r.event(rep)
	_, err := r.client.EventsV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	return err
}

// lookUp returns the UID of a Service, or of a pod with host ports; empty: unknown. kubectl describe shows only events with
// the object's UID, but an event without UID is still useful.
func (r *Recorder) lookUp(ctx context.Context, name api.Name) types.UID {
	if pod, ok := service.HostPodOf(name); ok {
		return r.podUID(pod)
	}
	svc, err := r.client.CoreV1().Services(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return svc.UID
}

func (r *Recorder) event(rep report) *eventsv1.Event {
	if rep.name.Namespace != "" {
		rep.problem = hideForeign(rep.name.Namespace, rep.problem)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", rep.uid, rep.problem.Reason, rep.problem.Message)
	namespace := cmp.Or(rep.name.Namespace, metav1.NamespaceDefault)
	s := rep.subject
	if pod, ok := service.HostPodOf(rep.name); ok {
		s, rep.name = subject{"v1", "Pod", "ProgramHostPorts"}, pod
	} else if s == (subject{}) {
		s = subject{"v1", "Service", "ProgramService"}
	}
	severity := corev1.EventTypeWarning
	if rep.normal {
		severity = corev1.EventTypeNormal
	}
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", rep.name.Name, h.Sum64())},
		EventTime:           metav1.NowMicro(),
		ReportingController: controllerName,
		ReportingInstance:   cmp.Or(api.Cut(r.node, 128), "unknown"),
		Action:              s.action,
		Reason:              api.Cut(rep.problem.Reason, 128),
		Type:                severity,
		Note:                api.Cut(rep.problem.Message, noteLimit),
		Regarding:           corev1.ObjectReference{APIVersion: s.version, Kind: s.kind, Namespace: rep.name.Namespace, Name: rep.name.Name, UID: rep.uid},
	}
}

// problemText returns the headline of a problem for the log.
func problemText(name api.Name, p api.Problem) string {
	if _, ok := service.HostPodOf(name); ok {
		return "a host port of a pod does not work"
	}
	switch p.Reason {
	case "BalanceNotSupported":
		return "Service asks for what this node's mode cannot do"
	case service.ReasonWeightsUnavailable:
		return "Service asks for weights, which nobody writes"
	case ReasonUnknownAnnotation:
		return "Service has an annotation without effect"
	}
	return "ignoring invalid part of Service"
}
