package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	gobgp "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// closeTimeout is how long a session may take to end in order.
const closeTimeout = 2 * time.Second

// A session is a BGP session with a router, and its GoBGP server.
type session struct {
	config     announce.SessionConfig // without BFD, which may change while the session goes on
	bfd        announce.BFD           // guarded by the Speaker's mu
	log        *slog.Logger
	server     *server.BgpServer
	unwatch    context.CancelFunc // ends the watch of the server
	ledger     *ledger
	advertised map[netip.Prefix]announce.Route
	onChange   func()
	// draining has the routes that the router is asked not to use, and the time of the request.
	draining map[netip.Prefix]time.Time

	down chan struct{} // closed when the session goes down after close

	mu         sync.Mutex
	up         bool
	changedAt  time.Time // of up
	downReason string    // why the session is not up
	closed     bool      // by this node
	// shunnedAt is the time at which this node refused the router for shunPause; zero: it did not.
	shunnedAt  time.Time
	shunReason string
}

// unwatched returns a session's configuration without BFD.
func unwatched(c announce.SessionConfig) announce.SessionConfig {
	c.BFD = announce.BFD{}
	return c
}

// becomes reports whether a session can get the wanted configuration without a new start. BFD can begin and change. Its
// end is a failure to routers like BIRD, unless the session ends before.
func (s *session) becomes(want announce.SessionConfig) bool {
	return unwatched(want) == s.config && (s.bfd == announce.BFD{} || want.BFD != announce.BFD{})
}

// openSession starts a session, which tries to connect until it is closed. routes counts what all routers send. wake is
// called when the session's state changes, and received when the router has changed its routes.
func openSession(log *slog.Logger, c announce.SessionConfig, restarting bool, routes *ledger, wake, received func()) (*session, error) {
	s := &session{
		config: unwatched(c), ledger: routes, log: log.With("peer", c.Peer, "address", c.Address), advertised: map[netip.Prefix]announce.Route{}, onChange: wake,
		downReason: "it has not been up yet", changedAt: time.Now(), down: make(chan struct{}),
	}
	watching, unwatch := context.WithCancel(context.Background())
	s.unwatch = unwatch
	var err error
	if s.server, err = newServer(watching, c, restarting, connectErrors{s}, s.changed, received); err != nil {
		unwatch()
	}
	return s, err
}

// setRoutes replaces the routes that the router gets, and sends the changes only.
func (s *session) setRoutes(routes []announce.Route) error {
	want := make(map[netip.Prefix]announce.Route, len(routes))
	var add []*apiutil.Path
	for _, r := range routes {
		want[r.Prefix] = r
		if have, ok := s.advertised[r.Prefix]; ok && have.Equal(r) {
			continue
		}
		p, err := path(r, s.config)
		if err != nil {
			return fmt.Errorf("announce %v: %w", r.Prefix, err)
		}
		add = append(add, p)
	}
	var drop []*apiutil.Path
	for prefix, r := range s.advertised {
		if _, ok := want[prefix]; ok {
			continue
		}
		p, err := path(r, s.config)
		if err != nil {
			return fmt.Errorf("withdraw %v: %w", prefix, err)
		}
		drop = append(drop, p)
	}
	if len(add) > 0 {
		if _, err := s.server.AddPath(apiutil.AddPathRequest{Paths: add}); err != nil {
			return fmt.Errorf("announce %d prefixes: %w", len(add), err) // the next try sends all of them again
		}
	}
	if len(drop) > 0 {
		if err := s.server.DeletePath(apiutil.DeletePathRequest{Paths: drop}); err != nil {
			return fmt.Errorf("withdraw %d prefixes: %w", len(drop), err)
		}
	}
	if len(add)+len(drop) > 0 {
		s.log.Info("routes changed", "announced", len(add), "withdrawn", len(drop), "now", len(want))
	}
	s.advertised = want
	return nil
}

// drain asks the router to prefer other routes to all of this node's routes.
func (s *session) drain() error {
	routes := slices.Collect(maps.Values(s.advertised))
	for i := range routes {
		routes[i].Leaving = true
	}
	return s.setRoutes(routes)
}

// withoutDrained removes leaving routes after their drainTime, and leaving routes that the router never had. next is
// the time until the next removal. 0 stands for never.
func (s *session) withoutDrained(routes []announce.Route) (remaining []announce.Route, next time.Duration) {
	up, _, _ := s.state()
	since := map[netip.Prefix]time.Time{}
	for _, r := range routes {
		if r.Leaving {
			if _, held := s.advertised[r.Prefix]; !held || !up {
				continue
			}
			at, known := s.draining[r.Prefix]
			if !known {
				at = time.Now()
			}
			rest := drainTime - time.Since(at)
			if rest <= 0 {
				continue
			}
			since[r.Prefix], next = at, sooner(next, rest)
		}
		remaining = append(remaining, r)
	}
	s.draining = since
	return remaining, next
}

// close ends the session. The router drops this node's routes, unless keep leaves them for the next start.
func (s *session) close(keep bool) {
	defer s.ledger.forget(s)
	defer s.unwatch()
	s.mu.Lock()
	s.closed = true
	up := s.up
	s.mu.Unlock()
	if keep {
		// Without a notification the router takes this for a program that died.
		_ = s.server.StopBgp(context.Background(), &gobgp.StopBgpRequest{AllowGracefulRestart: true})
		return
	}
	// Stop would send the reason "deconfigured", after which BIRD refuses this node for a minute.
	err := s.server.DisablePeer(context.Background(), &gobgp.DisablePeerRequest{Address: s.config.Address.Addr().String(), Communication: "fairway speaker ends"})
	if up && err == nil {
		select {
		case <-s.down:
		case <-time.After(closeTimeout):
		}
	}
	s.server.Stop()
}

// reset ends a session that is up, because the router does not answer any more. The session tries to connect again
// after a while.
func (s *session) reset(reason string) {
	if up, _, _ := s.state(); !up {
		return
	}
	err := s.server.ResetPeer(context.Background(), &gobgp.ResetPeerRequest{Address: s.config.Address.Addr().String(), Communication: "BFD: " + reason})
	if err != nil {
		s.log.Warn("cannot end a session", "err", err) // holdTime ends it
	}
}

// changed is called by GoBGP when the session's state changes.
func (s *session) changed(state *peerState, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state.AdminState == gobgp.PeerState_ADMIN_STATE_PFX_CT && s.shunnedAt.IsZero() {
		s.shunnedAt, s.shunReason = time.Now(), fmt.Sprintf("the router sent more than %d prefixes [filter what it sends to nodes]", maxReceived)
	}
	if up && s.config.PeerASN == 0 && state.PeerASN == s.config.LocalASN && !s.closed {
		s.refuse(fmt.Sprintf("the router is in AS %d too, and dynamicASN is external [dynamicASN: internal]", s.config.LocalASN))
		return
	}
	if up == s.up {
		if reason := refusalReason(s.config, *state); !up && reason != "" {
			s.failedLocked("the router refuses the session", reason)
		}
		return
	}
	if s.closed {
		if s.up = up; !up {
			close(s.down)
		}
		return
	}
	s.changedAt = time.Now()
	if s.up = up; up {
		s.downReason = ""
		s.log.Info("session is up", "asn", state.PeerASN)
	} else {
		s.downReason = state.DisconnectMessage
		if s.shunReason != "" {
			s.downReason = s.shunReason
		}
		if !s.config.GracefulRestart || s.shunReason != "" { // otherwise GoBGP keeps the routes
			s.ledger.forget(s)
		}
		s.log.Warn("session is down", "reason", s.downReason)
	}
	s.onChange()
}

// refuse ends a session that is up: the router is in the wrong AS, which GoBGP accepts if none is configured, or its
// routes need too much memory. s.mu is held.
func (s *session) refuse(reason string) {
	s.shunnedAt, s.changedAt, s.downReason, s.shunReason = time.Now(), time.Now(), reason, reason
	s.log.Warn("session is refused", "reason", reason)
	go func() { // DisablePeer waits for the goroutine that calls this function
		_ = s.server.DisablePeer(context.Background(), &gobgp.DisablePeerRequest{Address: s.config.Address.Addr().String(), Communication: reason}) // an error says that the session is closed already
	}()
	s.onChange()
}

// state returns whether the session is up, why not, and when this node refused the router; zero: it did not.
func (s *session) state() (up bool, lost string, shunnedAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up, s.downReason, s.shunnedAt
}

// upSince returns when the session came up; zero: it is not up.
func (s *session) upSince() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up {
		return time.Time{}
	}
	return s.changedAt
}

// connectFailed records why a session could not be opened, and logs a new reason.
func (s *session) connectFailed(message, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failedLocked(message, reason)
}

// failedLocked is connectFailed with s.mu held.
func (s *session) failedLocked(message, reason string) {
	if s.up || s.closed || s.downReason == reason || !s.shunnedAt.IsZero() {
		return
	}
	s.downReason = reason
	s.log.Warn(message, "reason", reason)
	s.onChange()
}

// standing returns the session's state.
func (s *session) standing(node string) announce.Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return announce.Standing{Node: node, Peer: s.config.Peer, Up: s.up, Since: s.changedAt, Reason: s.downReason}
}

// counters returns the numbers of messages.
func (s *session) counters() (sent, received *gobgp.Message, err error) {
	err = errors.New("no such peer")
	e := s.server.ListPeer(context.Background(), &gobgp.ListPeerRequest{Address: s.config.Address.Addr().String()}, func(p *gobgp.Peer) {
		sent, received, err = p.GetState().GetMessages().GetSent(), p.GetState().GetMessages().GetReceived(), nil
	})
	return sent, received, errors.Join(e, err)
}
