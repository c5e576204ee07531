package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairway-net/fairway/internal/kube"
)

const (
	// patience is how long a connection waits for a first endpoint, and for one that takes it.
	patience = 10 * time.Second
	// again is the pause before all endpoints are tried again.
	again = 200 * time.Millisecond
	// kept bounds the client's bytes that are kept for another endpoint. With more, the first endpoint is final.
	kept = 64 << 10
	// wordsTimeout is how long a node may take to say why a connection failed.
	wordsTimeout = 5 * time.Second
)

// A PodConn is a connection to a port of a pod: kube.PodConn.
type PodConn interface {
	io.ReadWriteCloser
	CloseWrite() error
	// Refusal returns why the connection failed, after Read has ended; nil: it did not.
	Refusal(context.Context) error
}

// A Dial opens a connection to a Backend.
type Dial func(context.Context, Backend) (PodConn, error)

// Counts are the figures of a Target.
type Counts struct {
	Open           atomic.Int64 // connections
	Sent, Received atomic.Int64 // bytes, seen by the client
	Moved, Failed  atomic.Int64 // connections that got another endpoint, and that got none or lost it
}

// errNoEndpoint: the Service had no endpoint for the time of patience.
var errNoEndpoint = errors.New("no endpoint is ready")

// A relay carries one connection of a client.
type relay struct {
	client   *net.TCPConn
	backends func() []Backend // the Target's, at each call
	turn     uint64           // which of them is the first
	dial     Dial
	counts   *Counts

	// final says that a byte has come back, or that more was sent than is kept.
	final atomic.Bool
	mu    sync.Mutex
	pod   PodConn    // nil between two endpoints
	taken *sync.Cond // a pod is attached, or the relay ends
	sent  []byte     // what the client has sent until final
	ended bool       // the client sends no more
	done  bool
}

// run carries the connection until both sides have ended, and returns why it failed.
func (r *relay) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = r.client.Close() })
	defer stop()
	var reading sync.WaitGroup
	defer reading.Wait()
	defer r.end()
	r.taken = sync.NewCond(&r.mu)
	reading.Go(r.send)
	until := time.Now().Add(patience)
	failed := errNoEndpoint
	for n := 0; ; n++ {
		all := r.backends()
		if n > 0 && (len(all) == 0 || n%len(all) == 0) {
			if time.Now().After(until) || !sleep(ctx, again) {
				return r.abort(failed)
			}
		}
		if len(all) == 0 {
			continue
		}
		if failed != errNoEndpoint {
			r.counts.Moved.Add(1)
		}
		err := r.try(ctx, all[(r.turn+uint64(n))%uint64(len(all))])
		if err == nil {
			return nil
		}
		if failed = err; !r.mayMove(err) {
			return r.abort(err)
		}
	}
}

// end ends send.
func (r *relay) end() {
	_ = r.client.Close()
	r.mu.Lock()
	r.done = true
	r.taken.Broadcast()
	r.mu.Unlock()
}

// abort resets the client's connection, so that the client does not take the end for the end of an answer.
func (r *relay) abort(why error) error {
	_ = r.client.SetLinger(0)
	return why
}

// mayMove reports whether the bytes of the client can go to another endpoint: no program can have got one.
func (r *relay) mayMove(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pod = nil
	return !r.final.Load() && (len(r.sent) == 0 || kube.Unreached(err))
}

// try carries the connection over one endpoint.
func (r *relay) try(ctx context.Context, b Backend) error {
	dialCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pod, err := r.dial(dialCtx, b)
	if err != nil {
		return err
	}
	defer pod.Close()
	stop := context.AfterFunc(ctx, func() { _ = pod.Close() })
	defer stop()
	r.attach(pod)
	err = r.receive(pod)
	words, cancelWords := context.WithTimeout(ctx, wordsTimeout)
	defer cancelWords()
	if said := pod.Refusal(words); said != nil {
		return said
	}
	return err
}

// attach sends to a pod what the client has sent so far, and from now on.
func (r *relay) attach(pod PodConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pod = pod
	r.taken.Broadcast()
	if len(r.sent) > 0 {
		_, _ = pod.Write(r.sent) // an error ends Read, too
	}
	if r.ended {
		_ = pod.CloseWrite()
	}
}

// receive copies the pod's bytes to the client.
func (r *relay) receive(pod PodConn) error {
	buf := make([]byte, 32<<10)
	for {
		got, err := pod.Read(buf)
		if got > 0 {
			r.final.Store(true)
			r.counts.Received.Add(int64(got))
			if _, err := r.client.Write(buf[:got]); err != nil {
				return nil // the client has gone
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// send copies the client's bytes to the pod of the moment, and keeps them until the connection is final.
func (r *relay) send() {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.client.Read(buf)
		r.counts.Sent.Add(int64(n))
		pod := r.keep(buf[:n], err != nil)
		if pod != nil && n > 0 {
			_, _ = pod.Write(buf[:n]) // an error ends Read, too
		}
		if pod != nil && err != nil {
			_ = pod.CloseWrite()
		}
		if err != nil {
			return
		}
	}
}

// keep remembers bytes for another endpoint, and returns the pod to send them to. Until the connection is final, it sends
// them itself, because attach must not send them, too.
func (r *relay) keep(b []byte, ended bool) PodConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = r.ended || ended
	for r.pod == nil && len(r.sent) > kept && !r.done {
		r.taken.Wait()
	}
	if r.final.Load() {
		r.sent = nil
		return r.pod
	}
	if r.sent = append(r.sent, b...); len(r.sent) > kept && r.pod != nil {
		r.final.Store(true)
	}
	if r.pod != nil {
		if len(b) > 0 {
			_, _ = r.pod.Write(b)
		}
		if ended {
			_ = r.pod.CloseWrite()
		}
	}
	return nil
}

// sleep waits, and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
