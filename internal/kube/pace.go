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

// How fast an API server is asked again that fails, by the number of failures or short watches.
const (
	firstPause = 800 * time.Millisecond // doubles
	lastPause  = 30 * time.Second
	// probePause is the longest for the one kind of an agent that finds out, for all of its
	// kinds, whether a server that did not answer, refused, or ended each watch, is well again.
	probePause = 2 * time.Second
	// absentPause is the longest for an optional kind that this API server does not have:
	// it will not have it before an upgrade.
	absentPause = 5 * time.Minute
	// shortWatch is a watch that ended so soon that it counts as a failure.
	shortWatch = 5 * time.Second
	// lastingWatch is a watch that has lasted so long that watches no longer end at once.
	lastingWatch = time.Second
	// logAgain is how often a failure that lasts is logged.
	logAgain = time.Minute
)

// reflectorPause turns off the reflector's own pauses, all but a trace: some of them
// do not end with the context, so that an agent could not stop for a minute while the
// API server is away. A pacer pauses instead.
var reflectorPause = wait.Backoff{Duration: 5 * time.Millisecond, Steps: 1, Factor: 1}

// A server is what the pacers of one agent tell each other of the API server: that it
// answers, and that its watches last. So each kind is read again soon after the server's return, although
// an agent asks a server that is away, or that ends each watch at once, only for one of its kinds often. The nil server
// tells nobody.
type server struct {
	mu     sync.Mutex
	next   [allEvents]chan struct{} // closed when an event next happens
	prober *pacer                   // it finds out for all whether the server is back; nil: it is
}

// An event is what pacers tell each other.
type event int

const (
	answered event = iota // the server has answered
	lasted                // a watch has lasted, of a kind whose watches did not
	allEvents
)

func newServer() *server {
	s := &server{}
	for e := range s.next {
		s.next[e] = make(chan struct{})
	}
	return s
}

// setProber lets p be the one that finds out for all whether the server answers, if none is; on
// false p is it no longer.
func (s *server) setProber(p *pacer, on bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.prober == nil:
		s.prober = p
	case !on && s.prober == p:
		s.prober = nil
	}
}

func (s *server) isProber(p *pacer) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prober == p
}

// await returns what is closed when an event next happens.
func (s *server) await(e event) <-chan struct{} {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next[e]
}

// publish says that an event has happened.
func (s *server) publish(e event) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.next[e])
	s.next[e] = make(chan struct{})
}

// A pacer asks the API server for one kind of object: not too often, and it logs when
// the server does not answer and when it does again, which client-go does not. It
// belongs to the one goroutine of a reflector.
type pacer struct {
	log     *slog.Logger
	kind    string
	without string // what happens without the kind; empty: it is needed
	refused func() // called when the API server will not answer: see permanent
	failed  func() // called for each failure
	server  *server
	trouble *troubles // where failures are kept until the next success

	// answered is closed when the server answers another pacer, from the moment on when our
	// last request began: one that was under way when the server came back may fail after the
	// others have their answers, and there is none to wait for then.
	answered   <-chan struct{}
	unanswered bool // the last request failed
	// lasted is the same for watches: closed when one of another pacer has lasted.
	lasted <-chan struct{}
	lasts  *time.Timer // until our watch, after some that ended soon, has lasted; nil: none has begun

	minPause time.Duration // before the next request, whatever came of the last
	failures int           // since a watch was last answered
	// short is how many watches in a row have ended soon, since the server was away last. The first
	// one counts for nothing: the first watch after an outage mostly ends at once, because an API server that has just started
	// does not know what it would go on from, and the list that follows must not wait.
	short    int
	absent   bool      // the API server does not have the kind
	denied   bool      // the last answer was permanent
	had      bool      // a request has succeeded
	listed   bool      // the last request was a list, and succeeded
	logged   time.Time // when a failure was last logged; zero: all is well
	watching time.Time // when the last watch began; zero: none has
}

// before waits until the server may be asked. It returns the context's error if that
// ends first.
func (p *pacer) before(ctx context.Context) error {
	if p.lasts != nil {
		p.lasts.Stop()
	}
	back := p.back()
	defer func() {
		p.answered, p.lasted = p.server.await(answered), p.server.await(lasted)
		if ctx.Err() != nil {
			p.server.setProber(p, false)
		}
	}()
	pause := p.pause()
	if pause == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-back:
		return nil
	case <-t.C:
		return nil
	}
}

// back returns what is closed when the server is back as another pacer has found out; nil: that would not end our pause.
func (p *pacer) back() <-chan struct{} {
	switch {
	case p.minPause > 0 || p.absent:
		return nil
	case p.unanswered:
		return p.answered
	default:
		return p.lasted
	}
}

// pause returns how long to wait before the next request.
func (p *pacer) pause() time.Duration {
	if pause := p.minPause; pause > 0 {
		p.minPause, p.listed, p.watching = 0, false, time.Time{}
		return pause + rand.N(pause/2+1)
	}
	if !p.watching.IsZero() {
		if time.Since(p.watching) < shortWatch {
			p.short++
		} else {
			p.short = 0
		}
		p.watching = time.Time{}
	}
	times := max(p.failures, p.short-1)
	if times <= 0 || p.listed {
		p.listed = false // its watch follows at once
		return 0
	}
	if !p.unanswered {
		p.server.setProber(p, true)
	}
	longest := lastPause
	switch {
	case p.absent && p.without != "":
		longest = absentPause
	case p.server.isProber(p):
		longest = probePause
	}
	pause := min(firstPause<<min(times-1, 10), longest)
	return pause + rand.N(pause/2) // not all nodes at once
}

// after notes the result of a request. streaming: the list was asked for as a stream,
// which old servers refuse; client-go asks them otherwise then.
func (p *pacer) after(ctx context.Context, err error, watch, streaming bool) {
	switch {
	case ctx.Err() != nil, streaming && apierrors.IsInvalid(err):
		return
	case err == nil:
		if watch {
			p.watching, p.failures = time.Now(), 0
			if p.short > 0 {
				p.lasts = time.AfterFunc(lastingWatch, func() { p.server.publish(lasted) })
			}
		}
		p.listed = !watch
		if !p.logged.IsZero() {
			p.log.Info("the API server answers again", "kind", p.kind)
		}
		p.logged, p.absent, p.denied, p.unanswered, p.had = time.Time{}, false, false, false, true
		p.trouble.clear(p.kind)
		p.server.setProber(p, false)
		p.server.publish(answered)
		return
	}
	if denied := permanent(err); denied != p.denied {
		// A server that starts forbids for a moment what it will not forbid.
		p.denied, p.failures = denied, 0
	}
	p.failures++
	p.unanswered = true
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		p.short = 0 // nobody answers: watches that ended before say nothing of the server that will
	}
	p.failed()
	p.absent = apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)
	p.server.setProber(p, p.mayProbe())
	if p.denied {
		p.refused()
	}
	if !p.absent || p.without == "" {
		p.trouble.note(p, err)
	}
	p.report(err)
}

// mayProbe reports whether the kind may be asked for often. What is refused is, if it is needed or
// could be read before: a right that was withdrawn by mistake comes back. An optional kind that
// was always refused is how the agent was installed.
func (p *pacer) mayProbe() bool {
	return !p.denied || !p.absent && (p.without == "" || p.had)
}

// permanent reports whether the API server refuses a request for what it is: the kind does
// not exist, we have no right to read it, the request is malformed or too long. To be too
// early, too often or with an old token is not permanent.
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

// report logs a failure: the first one, and then one a minute; that an optional kind does
// not exist only once.
func (p *pacer) report(err error) {
	first := p.logged.IsZero()
	if !first && (p.absent && p.without != "" || time.Since(p.logged) < logAgain) {
		return
	}
	p.logged = time.Now()
	level, attrs := slog.LevelWarn, []any{"kind", p.kind, "err", text.RequestError(err)}
	if p.without != "" {
		attrs = append(attrs, "meanwhile", p.without)
		if p.absent {
			level = slog.LevelInfo
		}
	}
	p.log.Log(context.Background(), level, "cannot read from the API server, will try again", attrs...)
}
