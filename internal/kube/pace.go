package kube

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairway-net/fairway/internal/text"
)

// The pauses between two requests for one kind while requests fail, or watches end at once. A random time of up to half
// the pause is added, so that the nodes' requests are spread.
const (
	firstPause = 800 * time.Millisecond // doubles with each failure
	maxPause   = 30 * time.Second
	// probePause is the prober's longest pause: with the random time 3 s.
	probePause = 2 * time.Second
	// absentPause is the longest pause for an optional built-in kind that the API server does not have. The kind comes
	// with an upgrade of the API server only.
	absentPause = 5 * time.Minute
	// installPause is the longest pause for an optional kind whose CustomResourceDefinition is missing. An administrator
	// may install it at any time, and expects the objects to count within seconds. A request is a 404 from the API
	// server's memory: of 5,000 nodes 400 a second.
	installPause = 10 * time.Second

	// watchStable is the age at which a watch counts as a success. A watch that ends sooner is a failure.
	watchStable = time.Second
	// logInterval is the time between two log lines about one failure that lasts.
	logInterval = time.Minute
)

// reflectorPause is the shortest possible pause of the reflector itself. The reflector's longer pauses do not all end
// with the context, so an agent could not stop for a minute while the API server is away. A pacer pauses instead.
var reflectorPause = wait.Backoff{Duration: 5 * time.Millisecond, Steps: 1, Factor: 1}

// A server holds the facts about the API server that the pacers of one process share. While the server is away, or ends
// each watch at once, only one pacer asks often: the prober. Its success wakes the others. With a nil server, pacers
// share no facts.
type server struct {
	mu     sync.Mutex
	well   chan struct{} // closed, and replaced, when the server answers again or a watch is stable
	prober *pacer        // nil: no kind fails
}

func newServer() *server { return &server{well: make(chan struct{})} }

// wellAgain returns a channel that is closed the next time that setWell is called.
func (s *server) wellAgain() <-chan struct{} {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.well
}

// setWell wakes the pacers that pause.
func (s *server) setWell() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.well)
	s.well = make(chan struct{})
}

// probe makes p the prober if there is none, and reports whether p is the prober.
func (s *server) probe(p *pacer) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prober == nil {
		s.prober = p
	}
	return s.prober == p
}

// stopProbing lets another pacer become the prober.
func (s *server) stopProbing(p *pacer) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.prober == p {
		s.prober = nil
	}
}

// A pacer slows down the requests for one kind of object while they fail. It logs when the API server stops
// answering and when it answers again, which client-go does not. A pacer belongs to the goroutine of one reflector.
type pacer struct {
	log     *slog.Logger
	kind    string
	without string // the effect of a missing kind; empty: the kind is required
	custom  bool   // the kind has a CustomResourceDefinition, which comes without an upgrade of the API server
	refused func() // called when the API server refuses the kind: see permanent
	failed  func() // called for each failure
	server  *server
	trouble *troubles // keeps the last failure until the next success

	minPause time.Duration // before the next request, after success and failure
	err      error         // of the last request
	failures int           // failed requests and short watches, since a watch was stable
	// forgave says that a short watch did not count as a failure. The first one after an outage does not, because an
	// API server that has just started does not know the watch's resourceVersion. The list that follows must not wait.
	forgave    bool
	succeeded  bool            // a request has succeeded
	logged     time.Time       // the last log line about a failure; zero: the last request succeeded
	watchStart time.Time       // of the last watch; zero: the last request was a list, or failed
	stable     *time.Timer     // runs when that watch is stable; nil: no watch yet
	well       <-chan struct{} // server.wellAgain, from before the last request, because another kind may succeed during it
}

// before waits until the pacer may ask the API server. It returns the context's error if ctx ends first.
func (p *pacer) before(ctx context.Context) error {
	if p.stable != nil {
		p.stable.Stop()
	}
	woken := p.well
	if p.minPause > 0 || absent(p.err) {
		woken = nil
	}
	defer func() { p.well = p.server.wellAgain() }()
	pause := p.pause()
	if pause == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-woken:
	case <-t.C:
	}
	return nil
}

// pause returns the time to wait before the next request.
func (p *pacer) pause() time.Duration {
	watchStart := p.watchStart
	p.watchStart = time.Time{}
	switch {
	case p.minPause > 0:
		pause := p.minPause
		p.minPause = 0
		return pause + rand.N(pause/2+1)
	case p.err != nil: // after has counted it
	case watchStart.IsZero():
		return 0 // the first request, or the watch that follows a list
	case time.Since(watchStart) >= watchStable:
		p.failures, p.forgave = 0, false
		return 0
	case !p.forgave:
		p.failures, p.forgave = 0, true
		return 0
	default:
		p.failures++
	}
	limit := maxPause
	switch {
	case absent(p.err) && p.without != "" && p.custom:
		limit = installPause
	case absent(p.err) && p.without != "":
		limit = absentPause
	case p.mayProbe() && p.server.probe(p):
		limit = probePause
	}
	pause := min(firstPause<<min(p.failures-1, 10), limit)
	return pause + rand.N(pause/2)
}

// after notes the result of a request. watch says that the request was a watch, streaming that it was the list as a
// stream. An old server refuses streams, and client-go then sends a plain list.
func (p *pacer) after(ctx context.Context, err error, watch, streaming bool) {
	if ctx.Err() != nil || streaming && apierrors.IsInvalid(err) {
		return
	}
	failedBefore := p.err
	p.err = err
	if err == nil {
		p.succeed(watch, failedBefore)
		return
	}
	if permanent(err) != permanent(failedBefore) {
		p.failures = 0 // a server that starts refuses all rights for a moment
	}
	p.failures++
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		p.forgave = false // the next answer may come from another server
	}
	p.failed()
	if !p.mayProbe() {
		p.server.stopProbing(p)
	}
	if permanent(err) {
		p.refused()
	}
	if absent(err) && p.without != "" {
		p.trouble.clear(p.kind) // the server has answered, whatever failed before
	} else {
		p.trouble.note(p, err)
	}
	p.report(err)
}

// succeed notes a request that the API server answered. failedBefore is the error of the request before it.
func (p *pacer) succeed(watch bool, failedBefore error) {
	p.succeeded, p.logged = true, time.Time{}
	p.trouble.clear(p.kind)
	if failedBefore != nil {
		message := "the API server answers again"
		if absent(failedBefore) {
			message = "the API server has the kind now"
		}
		p.log.Info(message, "kind", p.kind)
		p.server.setWell()
	}
	if watch {
		p.watchStart = time.Now()
		p.stable = time.AfterFunc(watchStable, func() {
			p.server.stopProbing(p)
			p.server.setWell()
		})
	}
}

// mayProbe reports whether the pacer may ask often. An absent kind may not. An optional kind that was always refused
// may not, because Fairway was installed without this right. A right that was withdrawn by mistake comes back.
func (p *pacer) mayProbe() bool {
	return !permanent(p.err) || !absent(p.err) && (p.without == "" || p.succeeded)
}

// absent reports whether the API server does not have the kind.
func absent(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) }

// permanent reports whether the API server refuses the request itself: the kind does not exist, a right is missing, or
// the request is malformed or too long. An early, a too frequent or an unauthorized request is not permanent.
func permanent(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusGone, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// report logs the first failure, and then one failure a minute. For an absent optional kind it logs once.
func (p *pacer) report(err error) {
	first := p.logged.IsZero()
	if !first && (absent(err) && p.without != "" || time.Since(p.logged) < logInterval) {
		return
	}
	p.logged = time.Now()
	level, attrs := slog.LevelWarn, []any{"kind", p.kind, "err", text.RequestError(err)}
	if p.without != "" {
		attrs = append(attrs, "meanwhile", p.without)
		if absent(err) {
			level = slog.LevelInfo
		}
	}
	p.log.Log(context.Background(), level, "cannot read from the API server, will try again", attrs...)
}
