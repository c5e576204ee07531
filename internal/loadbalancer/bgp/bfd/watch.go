package bfd

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// listenRetry is the pause before the next try to open a port.
	listenRetry = 5 * time.Second
	// maxReads bounds the packets that the loop reads from one socket before it wakes the sessions.
	maxReads = 256
	// goodbyes is how often a session that ends says so, because packets get lost.
	goodbyes = 3
	// maxWait is the loop's longest sleep.
	maxWait = time.Minute
)

// A Watch watches routers. Run must be called; the other methods may be called by any goroutine.
type Watch struct {
	changed func(Change)
	wakeFD  int

	mu        sync.Mutex
	sessions  map[Config]*watched
	byLocal   map[uint32]*watched
	listeners map[socketKind]*listener
}

// A watched is a router's session with its socket for sending.
type watched struct {
	*session
	fd             int // -1: none
	sent, received uint64
}

// A listener is a socket that receives packets. err says why it could not be opened.
type listener struct {
	fd    int // -1: not open
	err   error
	retry time.Time // of the next try to open it
}

// New returns a Watch without routers. changed is called with each Change, one call at a time. It must not wait, nor
// call the Watch.
func New(changed func(Change)) (*Watch, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch routers: %w", err)
	}
	return &Watch{changed: changed, wakeFD: fd, sessions: map[Config]*watched{}, byLocal: map[uint32]*watched{}, listeners: map[socketKind]*listener{}}, nil
}

// Set replaces the routers to watch, and ends the sessions of other routers. A session with new settings goes on.
func (w *Watch) Set(all []Config) {
	w.mu.Lock()
	defer w.mu.Unlock()
	want, unwanted := map[Config]bool{}, map[Config]*watched{}
	for _, c := range all {
		want[c] = true
	}
	for c, x := range w.sessions {
		if !want[c] {
			unwanted[c.Fixed()] = x
		}
	}
	for _, c := range all {
		if w.sessions[c] != nil {
			continue
		}
		if x := unwanted[c.Fixed()]; x != nil {
			delete(unwanted, c.Fixed())
			delete(w.sessions, x.cfg)
			x.reconfigure(time.Now(), c)
			w.sessions[c] = x
			continue
		}
		local := rand.Uint32()
		for local == 0 || w.byLocal[local] != nil {
			local = rand.Uint32()
		}
		x := &watched{session: newSession(c, local, time.Now(), rand.Float64), fd: -1}
		w.sessions[c], w.byLocal[local] = x, x
	}
	for c, x := range w.sessions {
		if !want[c] {
			w.forget(x)
		}
	}
	w.notify()
}

// wake wakes the loop.
func (w *Watch) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notify()
}

// forget ends a session. w.mu is held.
func (w *Watch) forget(x *watched) {
	if x.remote != 0 && x.fd >= 0 {
		for range goodbyes {
			x.send(x.end())
		}
	}
	x.hangUp()
	delete(w.sessions, x.cfg)
	delete(w.byLocal, x.local)
}

// notify wakes the loop. w.mu is held.
func (w *Watch) notify() {
	if w.wakeFD < 0 {
		return // Run has ended
	}
	one := binary.NativeEndian.AppendUint64(nil, 1)
	_, _ = unix.Write(w.wakeFD, one) // if it is full, the loop wakes too
}

// A Status is the state of a session.
type Status struct {
	State          State
	Sent, Received uint64 // packets
	Ups, Downs     uint64
	Problem        string // why the router cannot be watched; empty: it can
}

// Status returns the state of a session; false: there is no session.
func (w *Watch) Status(c Config) (Status, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.sessions[c]
	if x == nil {
		return Status{}, false
	}
	s := Status{State: x.state, Sent: x.sent, Received: x.received, Downs: x.events[0], Ups: x.events[1]}
	if l := w.listeners[c.socketKind()]; l != nil && l.err != nil {
		s.Problem = l.err.Error()
	}
	return s, true
}

// Run watches until ctx ends, and ends all sessions then.
func (w *Watch) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, w.wake)()
	defer w.close()
	for ctx.Err() == nil {
		fds, wait := w.waits()
		timeout := unix.NsecToTimespec(int64(wait))
		if _, err := unix.Ppoll(fds, &timeout, nil); err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for BFD packets: %w", err)
		}
		for _, c := range w.turn() {
			w.changed(c)
		}
	}
	return nil
}

func (w *Watch) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.sessions {
		w.forget(x)
	}
	w.open()
	_ = unix.Close(w.wakeFD)
	w.wakeFD = -1
}

// waits returns the sockets on which the loop waits, and how long.
func (w *Watch) waits() (fds []unix.PollFd, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open()
	fds, wait = []unix.PollFd{{Fd: int32(w.wakeFD), Events: unix.POLLIN}}, maxWait
	for _, l := range w.listeners {
		if l.fd >= 0 {
			fds = append(fds, unix.PollFd{Fd: int32(l.fd), Events: unix.POLLIN})
		} else {
			wait = min(wait, time.Until(l.retry))
		}
	}
	for _, x := range w.sessions {
		wait = min(wait, time.Until(x.due()))
	}
	return fds, max(0, wait)
}

// open opens the sockets that sessions need, and closes the others. w.mu is held.
func (w *Watch) open() {
	need := map[socketKind]bool{}
	for c := range w.sessions {
		need[c.socketKind()] = true
	}
	maps.DeleteFunc(w.listeners, func(k socketKind, l *listener) bool {
		if !need[k] && l.fd >= 0 {
			_ = unix.Close(l.fd)
		}
		return !need[k]
	})
	for k := range need {
		l := w.listeners[k]
		if l == nil {
			l = &listener{fd: -1}
			w.listeners[k] = l
		}
		if l.fd < 0 && !time.Now().Before(l.retry) {
			last := l.err
			if l.fd, l.err = k.listen(); l.err != nil {
				l.retry = time.Now().Add(listenRetry)
			}
			if (last == nil) != (l.err == nil) {
				w.noteProblem(k)
			}
		}
	}
}

// noteProblem makes a Change for the sessions of a socket that cannot be opened, or can again. w.mu is held.
func (w *Watch) noteProblem(k socketKind) {
	for c, x := range w.sessions {
		if c.socketKind() == k {
			x.changes = append(x.changes, Change{Config: c, Problem: true})
			x.next = time.Now() // wakes the loop
		}
	}
}

// turn reads the packets that the kernel has, wakes the sessions, and returns their Changes.
func (w *Watch) turn() (all []Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var woken [8]byte
	_, _ = unix.Read(w.wakeFD, woken[:])
	buf, oob := make([]byte, 512), make([]byte, 128)
	for k, l := range w.listeners {
		for i := 0; l.fd >= 0 && i < maxReads; i++ {
			d, ok := read(l.fd, buf, oob)
			if !ok {
				break
			}
			w.take(k, d)
		}
	}
	now := time.Now()
	for _, x := range w.sessions {
		x.sendAll(x.wake(now))
		for _, c := range x.changes {
			if all = append(all, c); !c.Up && !c.Problem {
				x.hangUp() // the next packet may need another source address
			}
		}
		x.changes = nil
	}
	return all
}

// take gives a datagram to its session.
func (w *Watch) take(k socketKind, d datagram) {
	p, err := parse(d.data)
	if err != nil {
		return
	}
	x := w.byLocal[p.your]
	if p.your == 0 {
		for c, candidate := range w.sessions {
			if c.Peer == d.from && c.MultiHop == k.multiHop {
				x = candidate
			}
		}
	}
	if x == nil || x.cfg.socketKind() != k || d.ttl < x.cfg.minTTL() {
		return
	}
	if p.your == 0 && x.state == Up {
		// Only a session that is up has shown that the router knows the session's number. A router that has restarted does
		// not know it any more, and its old session ends by silence.
		return
	}
	x.received++
	x.sendAll(x.receive(time.Now(), p))
}

// minTTL returns the lowest TTL of a packet that counts: 255 from the node's own network (RFC 5881, 5).
func (c Config) minTTL() int {
	switch {
	case !c.MultiHop:
		return hopLimit
	case c.MinTTL == 0:
		return hopLimit - 1
	}
	return int(c.MinTTL)
}

func (x *watched) sendAll(all []packet) {
	for _, p := range all {
		x.send(p)
	}
}

// send sends a packet. An error does not matter, because the next packet follows soon.
func (x *watched) send(p packet) {
	if x.fd < 0 {
		fd, err := dial(x.cfg)
		if err != nil {
			return
		}
		x.fd = fd
	}
	if _, err := unix.Write(x.fd, p.marshal()); err == nil {
		x.sent++
	}
}

func (x *watched) hangUp() {
	if x.fd >= 0 {
		_ = unix.Close(x.fd)
		x.fd = -1
	}
}
