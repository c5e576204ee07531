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
	// listenAgain is the time to the next try to open a port.
	listenAgain = 5 * time.Second
	// mostAtOnce bounds the packets of a room that are read before sessions are looked at.
	mostAtOnce = 256
	// goodbyes is how often a session that ends says so: packets get lost.
	goodbyes = 3
	// idle is the longest that the loop sleeps.
	idle = time.Minute
)

// A Watch watches routers. Run must be called; the other methods may be called by any goroutine.
type Watch struct {
	changed func(Change)
	wakeFD  int

	mu       sync.Mutex
	sessions map[Config]*watched
	byLocal  map[uint32]*watched
	rooms    map[room]*listener
}

// A watched router has a session and a socket to send from.
type watched struct {
	*session
	fd             int // -1: none
	sent, received uint64
}

// A listener is the socket of a room; err says why there is none.
type listener struct {
	fd    int
	err   error
	again time.Time
}

// New returns a Watch of nothing. changed is called when a session comes up or goes down, one call
// at a time; it must not wait, nor call the Watch.
func New(changed func(Change)) (*Watch, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch routers: %w", err)
	}
	return &Watch{changed: changed, wakeFD: fd, sessions: map[Config]*watched{}, byLocal: map[uint32]*watched{}, rooms: map[room]*listener{}}, nil
}

// Set says which routers are watched from now on. Sessions of others end; one whose router is watched in another way goes on.
func (w *Watch) Set(all []Config) {
	w.mu.Lock()
	defer w.mu.Unlock()
	want, former := map[Config]bool{}, map[Config]*watched{}
	for _, c := range all {
		want[c] = true
	}
	for c, x := range w.sessions {
		if !want[c] {
			former[c.Way()] = x
		}
	}
	for _, c := range all {
		if w.sessions[c] != nil {
			continue
		}
		if x := former[c.Way()]; x != nil {
			delete(former, c.Way())
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

// wake ends the loop's waiting.
func (w *Watch) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notify()
}

// forget ends a session.
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

func (w *Watch) notify() {
	if w.wakeFD < 0 {
		return // Run has ended
	}
	one := binary.NativeEndian.AppendUint64(nil, 1)
	_, _ = unix.Write(w.wakeFD, one) // full is awake too
}

// A Status is how a session is.
type Status struct {
	State          State
	Sent, Received uint64 // packets
	Ups, Downs     uint64
	Problem        string // why there can be none; empty: nothing
}

// Status returns how a session is; false: there is none.
func (w *Watch) Status(c Config) (Status, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.sessions[c]
	if x == nil {
		return Status{}, false
	}
	s := Status{State: x.state, Sent: x.sent, Received: x.received, Downs: x.events[0], Ups: x.events[1]}
	if l := w.rooms[c.room()]; l != nil && l.err != nil {
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

// waits returns for what the loop waits, and how long.
func (w *Watch) waits() (fds []unix.PollFd, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open()
	fds, wait = []unix.PollFd{{Fd: int32(w.wakeFD), Events: unix.POLLIN}}, idle
	for _, l := range w.rooms {
		if l.fd >= 0 {
			fds = append(fds, unix.PollFd{Fd: int32(l.fd), Events: unix.POLLIN})
		} else {
			wait = min(wait, time.Until(l.again))
		}
	}
	for _, x := range w.sessions {
		wait = min(wait, time.Until(x.due()))
	}
	return fds, max(0, wait)
}

// open opens the rooms that sessions need and closes the others.
func (w *Watch) open() {
	need := map[room]bool{}
	for c := range w.sessions {
		need[c.room()] = true
	}
	maps.DeleteFunc(w.rooms, func(r room, l *listener) bool {
		if !need[r] && l.fd >= 0 {
			_ = unix.Close(l.fd)
		}
		return !need[r]
	})
	for r := range need {
		l := w.rooms[r]
		if l == nil {
			l = &listener{fd: -1}
			w.rooms[r] = l
		}
		if l.fd < 0 && !time.Now().Before(l.again) {
			was := l.err
			if l.fd, l.err = r.listen(); l.err != nil {
				l.again = time.Now().Add(listenAgain)
			}
			if (was == nil) != (l.err == nil) {
				w.notifyRoom(r)
			}
		}
	}
}

// notifyRoom reports that a room cannot be opened, or can again.
func (w *Watch) notifyRoom(r room) {
	for c, x := range w.sessions {
		if c.room() == r {
			x.changes = append(x.changes, Change{Config: c, Problem: true})
			x.next = time.Now() // the loop looks
		}
	}
}

// turn reads all that the kernel has, and does then what is due.
func (w *Watch) turn() (all []Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var woken [8]byte
	_, _ = unix.Read(w.wakeFD, woken[:])
	buf, oob := make([]byte, 512), make([]byte, 128)
	for r, l := range w.rooms {
		for i := 0; l.fd >= 0 && i < mostAtOnce; i++ {
			d, ok := read(l.fd, buf, oob)
			if !ok {
				break
			}
			w.take(r, d)
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
func (w *Watch) take(r room, d datagram) {
	p, err := parse(d.data)
	if err != nil {
		return
	}
	x := w.byLocal[p.your]
	if p.your == 0 {
		for c, one := range w.sessions {
			if c.Peer == d.from && c.MultiHop == r.multiHop {
				x = one
			}
		}
	}
	if x == nil || x.cfg.room() != r || d.ttl < x.cfg.leastTTL() {
		return
	}
	x.received++
	x.sendAll(x.receive(time.Now(), p))
}

// leastTTL is what a packet must have left: from the network itself all of it (RFC 5881, 5).
func (c Config) leastTTL() int {
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

// send sends a packet, if there is a way: the next one is due soon.
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
