package arp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// burst is how often a new address is announced, with burstPause between two announcements.
	burst      = 5
	burstPause = 1100 * time.Millisecond
	// Later announcements come after a random time between repeatMin and repeatMax: switches forget a MAC after 300 s.
	repeatMin = 200 * time.Second
	repeatMax = 290 * time.Second
	// defendPause is the shortest time between two answers to a conflict.
	defendPause = time.Second
	// rescanInterval is the time between two reads of the interfaces without an event.
	rescanInterval = 30 * time.Second
)

// Config configures a Responder. All fields are required.
type Config struct {
	Log *slog.Logger
	// Allowed reports whether the grant for an address lasts now. Any goroutine calls it, right before each frame.
	Allowed func(netip.Addr) bool
	// Conflict is called when another machine claims an address of this node. It must not call the Responder, nor wait.
	Conflict func(a netip.Addr, device string, mac MAC)
	// Count is called for each frame with the lock held. It must not wait.
	Count func(Frame, netip.Addr)
	// Interfaces is called when they change, with all interfaces that can announce.
	Interfaces func([]Interface)
}

// A Frame is a kind of frame, for Config.Count.
type Frame uint8

// The kinds of frames.
const (
	Request    Frame = iota // another machine asks for an address of this node
	Response                // this node's answer
	Gratuitous              // this node's announcement
)

// A Responder answers for addresses. Its methods may be called by any goroutine.
type Responder struct {
	cfg Config

	mu        sync.Mutex
	listeners map[string]*listener // by the interface's name
	addrs     map[netip.Addr]*announced
	wake      chan struct{}
	known     []link
	probes    map[netip.Addr]*probing
	work      sync.WaitGroup
}

// An announced is the state of one address.
type announced struct {
	devices []string  // to announce on; empty: all interfaces that have a network
	left    int       // remaining announcements of the burst
	next    time.Time // of the next announcement
	defend  time.Time // earliest time of the next answer to a conflict
}

// A probing is the state of one Probe.
type probing struct {
	on    *announced // where this node would announce the address
	heard chan MAC   // receives the MAC of a machine that claims the address there
}

// New returns a Responder that does nothing before Run.
func New(cfg Config) *Responder {
	return &Responder{cfg: cfg, listeners: map[string]*listener{}, addrs: map[netip.Addr]*announced{}, wake: make(chan struct{}, 1), probes: map[netip.Addr]*probing{}}
}

// Set replaces the addresses to answer for, each with its interfaces. No interfaces stand for all interfaces with a
// network. A new address is announced at once.
func (r *Responder) Set(addrs map[netip.Addr][]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for addr := range r.addrs {
		if _, ok := addrs[addr]; !ok {
			delete(r.addrs, addr)
		}
	}
	for addr, devices := range addrs {
		if old := r.addrs[addr]; old != nil && slices.Equal(old.devices, devices) {
			continue
		}
		r.addrs[addr] = &announced{devices: slices.Clone(devices), left: burst}
	}
	r.joinLocked()
	r.announceLocked(time.Now())
	r.notify()
}

func (r *Responder) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// On returns the interfaces on which an address is announced, sorted.
func (r *Responder) On(addr netip.Addr) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := r.addrs[addr]; x != nil {
		for name := range r.listeners {
			if r.onLocked(x, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// onLocked reports whether an address is announced on an interface.
func (r *Responder) onLocked(x *announced, device string) bool {
	if len(x.devices) > 0 {
		return slices.Contains(x.devices, device)
	}
	i := slices.IndexFunc(r.known, func(l link) bool { return l.Name == device })
	return i >= 0 && r.known[i].Network
}

// Run answers until ctx ends, which is no error.
func (r *Responder) Run(ctx context.Context) error {
	events, err := subscribe(ctx)
	if err != nil {
		return err
	}
	defer r.work.Wait()
	defer r.closeAll()
	next := time.NewTimer(0)
	defer next.Stop()
	again := time.NewTicker(rescanInterval)
	defer again.Stop()
	for {
		if err := r.refresh(); err != nil {
			r.cfg.Log.Warn("cannot read the node's interfaces; addresses are announced on the interfaces of the last read", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-events:
		case <-again.C:
		case <-r.wake:
		case <-next.C:
		}
		r.mu.Lock()
		due := r.announceLocked(time.Now())
		r.mu.Unlock()
		next.Reset(due)
	}
}

// subscribe returns a channel that receives when interfaces or their addresses change, until ctx ends.
func subscribe(ctx context.Context) (<-chan struct{}, error) {
	out := make(chan struct{}, 1)
	links, addrs := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
	if err := netlink.LinkSubscribe(links, ctx.Done()); err != nil {
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	if err := netlink.AddrSubscribe(addrs, ctx.Done()); err != nil {
		return nil, fmt.Errorf("watch addresses of interfaces: %w", err)
	}
	go func() {
		for links != nil || addrs != nil { // both end with ctx
			ok := false
			select {
			case _, ok = <-links:
				if !ok {
					links = nil
				}
			case _, ok = <-addrs:
				if !ok {
					addrs = nil
				}
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, nil
}

// refresh opens sockets on new interfaces, and closes the sockets of interfaces that are gone.
func (r *Responder) refresh() error {
	now, err := links()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	r.mu.Lock()
	changed := r.known == nil || !slices.EqualFunc(now, r.known, link.equal)
	r.known = append([]link{}, now...)
	if !changed {
		r.mu.Unlock()
		return nil
	}
	r.reopenLocked(now)
	r.joinLocked()
	all := make([]Interface, len(now))
	for i, l := range now {
		all[i] = l.Interface
	}
	r.mu.Unlock()
	r.cfg.Interfaces(all)
	return nil
}

// reopenLocked makes a listener for each link. After an interface is new or has another MAC, all addresses are
// announced again with a burst.
func (r *Responder) reopenLocked(now []link) {
	for name, l := range r.listeners {
		same := func(k link) bool { return k.Name == l.name && k.index == l.index && k.mac == l.mac }
		if i := slices.IndexFunc(now, same); i >= 0 {
			l.source = now[i].source
			continue
		}
		l.close()
		delete(r.listeners, name)
	}
	for _, k := range now {
		if r.listeners[k.Name] != nil {
			continue
		}
		l, err := listen(k)
		if err != nil {
			r.cfg.Log.Warn("cannot announce on an interface", "interface", k.Name, "err", err)
			continue
		}
		r.listeners[k.Name] = l
		for _, f := range l.frames {
			r.work.Go(func() { r.serve(l, f) })
		}
		for _, x := range r.addrs {
			x.left, x.next = burst, time.Time{}
		}
	}
}

// joinLocked joins the multicast groups of the addresses on each interface.
func (r *Responder) joinLocked() {
	for name, l := range r.listeners {
		var addrs []netip.Addr
		for addr, x := range r.addrs {
			if r.onLocked(x, name) {
				addrs = append(addrs, addr)
			}
		}
		if err := l.join(addrs); err != nil {
			r.cfg.Log.Warn("cannot join the multicast groups of addresses: IPv6 neighbours may not find them here", "err", err)
		}
	}
}

func (r *Responder) closeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.listeners {
		l.close()
	}
	r.listeners = map[string]*listener{}
}

// announceLocked sends the announcements that are due, and returns the time until the next one.
func (r *Responder) announceLocked(now time.Time) time.Duration {
	soonest := now.Add(repeatMin)
	for addr, x := range r.addrs {
		if !now.Before(x.next) {
			r.advertiseLocked(addr, x)
			if x.left--; x.left > 0 {
				x.next = now.Add(burstPause)
			} else {
				x.next = now.Add(repeatMin + rand.N(repeatMax-repeatMin))
			}
		}
		if x.next.Before(soonest) {
			soonest = x.next
		}
	}
	return max(time.Millisecond, soonest.Sub(now))
}

// advertiseLocked announces an address on its interfaces.
func (r *Responder) advertiseLocked(addr netip.Addr, x *announced) {
	for name, l := range r.listeners {
		if !r.onLocked(x, name) || addr.Is6() && !l.source.IsValid() {
			continue
		}
		for _, frame := range gratuitous(addr, l.mac, l.source) {
			if r.cfg.Allowed(addr) {
				_ = l.send(frame) // an error is the fence's, or an interface goes down; later announcements repeat it
				r.cfg.Count(Gratuitous, addr)
			}
		}
	}
}

// readPause is the pause after a failed read. It prevents a tight loop.
const readPause = 10 * time.Millisecond

// serve answers the frames of a listener's socket until the socket is closed. After an error it reads on, because only
// refresh knows whether the interface is gone.
func (r *Responder) serve(l *listener, f *os.File) {
	buf := make([]byte, 2048)
	for {
		n, err := f.Read(buf)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case err != nil:
			time.Sleep(readPause)
			continue
		}
		if m, ok := parseFrame(buf[:n]); ok {
			r.handle(l, m)
		}
	}
}

// handle answers a request for an address of this node, and another machine's claim to it.
func (r *Responder) handle(l *listener, m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, own := range r.listeners {
		if m.from == own.mac || m.isClaim && m.mac == own.mac {
			return
		}
	}
	if m.isClaim {
		if p := r.probes[m.sender]; p != nil && r.onLocked(p.on, l.name) {
			select {
			case p.heard <- m.mac:
			default: // it has heard another machine
			}
		}
		if x := r.addrs[m.sender]; x != nil && r.onLocked(x, l.name) && r.cfg.Allowed(m.sender) {
			if now := time.Now(); now.After(x.defend) {
				x.defend = now.Add(defendPause)
				r.advertiseLocked(m.sender, x)
				r.cfg.Conflict(m.sender, l.name, m.mac)
			}
		}
	}
	x := r.addrs[m.target]
	if !m.isRequest || x == nil || !r.onLocked(x, l.name) || m.target.Is6() && !l.source.IsValid() || !r.cfg.Allowed(m.target) {
		return
	}
	r.cfg.Count(Request, m.target)
	if l.send(reply(m, l.mac, l.source)) == nil { // else it is the fence, or an interface goes down; the machine asks again
		r.cfg.Count(Response, m.target)
	}
}

// Probe asks three times within wait whether another machine has an address, on the interfaces on which this node would
// announce it. Answers on other interfaces do not count: a pod could give them. ok says that a machine has answered, with
// this MAC.
func (r *Responder) Probe(ctx context.Context, addr netip.Addr, devices []string, wait time.Duration) (mac MAC, ok bool) {
	p := &probing{on: &announced{devices: devices}, heard: make(chan MAC, 1)}
	r.mu.Lock()
	r.probes[addr] = p
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.probes, addr)
		r.mu.Unlock()
	}()
	pause := time.NewTicker(wait / 3)
	defer pause.Stop()
	for range 3 {
		r.mu.Lock()
		for name, l := range r.listeners {
			if r.onLocked(p.on, name) {
				_ = l.send(probe(addr, l.mac)) // the next round repeats it
			}
		}
		r.mu.Unlock()
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return mac, false
			case mac := <-p.heard:
				return mac, true
			case <-pause.C:
				waiting = false
			}
		}
	}
	return mac, false
}
