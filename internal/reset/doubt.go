package reset

import (
	"context"
	"net/netip"
	"time"
)

// A doubt is whether a namespace has a living pod with that address.
type doubt struct {
	namespace string
	addr      netip.Addr
}

const (
	// askFor is how long one question may take.
	askFor = 10 * time.Second
	// mostTries bounds how often it is asked: an API server that is away for longer will
	// not say of a change of then what it meant.
	mostTries = 30
)

// settle asks about doubts, one after the other, until ctx ends.
func (r *Resetter) settle(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.ask:
		}
		r.mu.Lock()
		doubts := r.doubts
		r.doubts = map[doubt][]func(){}
		r.mu.Unlock()
		for about, all := range doubts {
			if !r.gone(ctx, about) {
				continue
			}
			for _, then := range all {
				then()
			}
		}
	}
}

// gone reports whether an endpoint is gone. Without an answer it is not.
func (r *Resetter) gone(ctx context.Context, about doubt) bool {
	if r.cfg.Alive == nil {
		return false
	}
	for range mostTries {
		asking, cancel := context.WithTimeout(ctx, askFor)
		alive, err := r.cfg.Alive(asking, about.namespace, about.addr)
		cancel()
		if err == nil {
			return !alive
		}
		if ctx.Err() != nil {
			return false
		}
		r.cfg.Log.Debug("cannot ask whether an endpoint is gone", "namespace", about.namespace, "address", about.addr, "err", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(r.times.askAgain):
		}
	}
	r.cfg.Log.Warn("nobody knows whether an endpoint is gone; connections to it are kept", "namespace", about.namespace, "address", about.addr)
	return false
}
