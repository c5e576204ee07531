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
	"golang.org/x/sys/unix"
)

// How often an address is announced without being asked for. Switches forget after 300 s.
const (
	burst      = 5
	burstPause = 1100 * time.Millisecond
	repeatMin  = 200 * time.Second
	repeatMax  = 290 * time.Second
	// defendPause is the least time between two answers to a conflict.
	defendPause = time.Second
	// rescan is how often interfaces are read without an event.
	rescan = 30 * time.Second
)

// Config says what an Announcer tells. All fields are required.
type Config struct {
	Log *slog.Logger
	// Allowed reports whether the grant for an address lasts now. It is asked right before
	// each frame and may be called by any goroutine.
	Allowed func(netip.Addr) bool
	// Conflict is called when another machine says that an address of ours is at its MAC. It
	// must not call the Announcer, nor wait.
	Conflict func(a netip.Addr, device string, mac MAC)
	// Count is called for each frame, with the lock held. It must not wait.
	Count func(Frame, netip.Addr)
	// Interfaces is called with all interfaces that could announce, when they change.
	Interfaces func([]Interface)
}

// A Frame is a kind of frame that is counted.
type Frame uint8

// The frames.
const (
	Request    Frame = iota // a question for an address that is announced here
	Response                // an answer
	Gratuitous              // an announcement
)

// An Announcer answers for addresses. Set may be called by any goroutine.
type Announcer struct {
	cfg Config

	mu    sync.Mutex
	ports map[string]*port
	addrs map[netip.Addr]*announced
	wake  chan struct{}
	known []link
	// probes are who asks whether another machine has an address.
	probes map[netip.Addr]probing
	work   sync.WaitGroup
}

// A probing waits for a machine to say that it has an address.
type probing struct {
	replies chan MAC
	answers bool // only what it sends to this node counts: it may also ask, or answer another
}

// announced is one address.
type announced struct {
	devices []string // only there; empty: on all that have a network
	left    int      // announcements of the first burst
	next    time.Time
	defend  time.Time // no sooner
}

// New returns an Announcer that does nothing until Run.
func New(cfg Config) *Announcer {
	return &Announcer{cfg: cfg, ports: map[string]*port{}, addrs: map[netip.Addr]*announced{}, wake: make(chan struct{}, 1), probes: map[netip.Addr]probing{}}
}

// Set says which addresses are answered for from now on, each on some interfaces, or on all
// that have a network. One that is new is announced at once.
func (a *Announcer) Set(addrs map[netip.Addr][]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for addr := range a.addrs {
		if _, ok := addrs[addr]; !ok {
			delete(a.addrs, addr)
		}
	}
	for addr, devices := range addrs {
		if old := a.addrs[addr]; old != nil && slices.Equal(old.devices, devices) {
			continue
		}
		a.addrs[addr] = &announced{devices: slices.Clone(devices), left: burst}
	}
	a.joinLocked()
	a.announceLocked(time.Now())
	a.notify()
}

func (a *Announcer) notify() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// On returns the interfaces on which an address is announced, sorted.
func (a *Announcer) On(addr netip.Addr) (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.addrs[addr]; x != nil {
		for name := range a.ports {
			if a.onLocked(x, name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func (a *Announcer) onLocked(x *announced, device string) bool {
	if len(x.devices) > 0 {
		return slices.Contains(x.devices, device)
	}
	i := slices.IndexFunc(a.known, func(l link) bool { return l.Name == device })
	return i >= 0 && a.known[i].Network
}

// Run answers until ctx ends, which is no error.
func (a *Announcer) Run(ctx context.Context) error {
	events, err := subscribe(ctx)
	if err != nil {
		return err
	}
	defer a.work.Wait()
	defer a.closeAll()
	next := time.NewTimer(0)
	defer next.Stop()
	again := time.NewTicker(rescan)
	defer again.Stop()
	for {
		if err := a.refresh(); err != nil {
			a.cfg.Log.Warn("cannot read the node's interfaces; addresses are announced on those known before", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-events:
		case <-again.C:
		case <-a.wake:
		case <-next.C:
		}
		a.mu.Lock()
		due := a.announceLocked(time.Now())
		a.mu.Unlock()
		next.Reset(due)
	}
}

// subscribe returns a channel that receives when interfaces or their addresses change.
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

// refresh opens what is new and closes what is gone.
func (a *Announcer) refresh() error {
	now, err := links()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	a.mu.Lock()
	changed := a.known == nil || !slices.Equal(now, a.known)
	a.known = append([]link{}, now...)
	if !changed {
		a.mu.Unlock()
		return nil
	}
	a.reopenLocked(now)
	a.joinLocked()
	all := make([]Interface, len(now))
	for i, l := range now {
		all[i] = l.Interface
	}
	a.mu.Unlock()
	a.cfg.Interfaces(all)
	return nil
}

// reopenLocked makes the ports those of the links. What an interface that is new or has another
// MAC announces is announced as if for the first time.
func (a *Announcer) reopenLocked(now []link) {
	for name, p := range a.ports {
		same := func(l link) bool { return l.Name == p.name && l.index == p.index && l.mac == p.mac }
		if i := slices.IndexFunc(now, same); i >= 0 {
			p.source = now[i].source
			continue
		}
		p.close()
		delete(a.ports, name)
	}
	for _, l := range now {
		if a.ports[l.Name] != nil {
			continue
		}
		p, err := openPort(l)
		if err != nil {
			a.cfg.Log.Warn("cannot announce on an interface", "interface", l.Name, "err", err)
			continue
		}
		a.ports[l.Name] = p
		for _, f := range p.frames {
			a.work.Go(func() { a.serve(p, f) })
		}
		for _, x := range a.addrs {
			x.left, x.next = burst, time.Time{}
		}
	}
}

func (a *Announcer) joinLocked() {
	for name, p := range a.ports {
		var addrs []netip.Addr
		for addr, x := range a.addrs {
			if a.onLocked(x, name) {
				addrs = append(addrs, addr)
			}
		}
		if err := p.join(addrs); err != nil {
			a.cfg.Log.Warn("cannot join the multicast groups of addresses: IPv6 neighbours may not find them here", "err", err)
		}
	}
}

func (a *Announcer) closeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.ports {
		p.close()
	}
	a.ports = map[string]*port{}
}

// announceLocked sends what is due, and returns when the next one is.
func (a *Announcer) announceLocked(now time.Time) time.Duration {
	soonest := now.Add(repeatMin)
	for addr, x := range a.addrs {
		if !now.Before(x.next) {
			a.advertiseLocked(addr, x)
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

// advertiseLocked says to all that an address is here.
func (a *Announcer) advertiseLocked(addr netip.Addr, x *announced) {
	for name, p := range a.ports {
		if !a.onLocked(x, name) || addr.Is6() && !p.source.IsValid() {
			continue
		}
		for _, frame := range gratuitous(addr, p.mac, p.source) {
			if a.cfg.Allowed(addr) {
				_ = p.send(frame) // the fence, or an interface that goes down; it is repeated
				a.cfg.Count(Gratuitous, addr)
			}
		}
	}
}

// serve answers what comes through an interface, until that is closed.
func (a *Announcer) serve(p *port, f *os.File) {
	buf := make([]byte, 2048)
	for {
		n, err := f.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			if !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.ENOBUFS) {
				return // the interface is gone; refresh closes the port
			}
			continue
		}
		if q, ok := parseFrame(buf[:n]); ok {
			a.handle(p, q)
		}
	}
}

// handle answers a question, and a claim that is not ours.
func (a *Announcer) handle(p *port, q question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, own := range a.ports {
		if q.from == own.mac || q.claim && q.mac == own.mac {
			return
		}
	}
	if q.claim {
		if w := a.probes[q.sender]; !w.answers || !q.ask && q.to == p.mac {
			select {
			case w.replies <- q.mac:
			default: // nobody waits
			}
		}
		if x := a.addrs[q.sender]; x != nil && a.onLocked(x, p.name) && a.cfg.Allowed(q.sender) {
			if now := time.Now(); now.After(x.defend) {
				x.defend = now.Add(defendPause)
				a.advertiseLocked(q.sender, x)
				a.cfg.Conflict(q.sender, p.name, q.mac)
			}
		}
	}
	x := a.addrs[q.target]
	if !q.ask || x == nil || !a.onLocked(x, p.name) || q.target.Is6() && !p.source.IsValid() || !a.cfg.Allowed(q.target) {
		return
	}
	a.cfg.Count(Request, q.target)
	if p.send(reply(q, p.mac, p.source)) == nil { // else the fence, or an interface that goes down: it is asked again
		a.cfg.Count(Response, q.target)
	}
}

// Probe asks three times within wait whether another machine has an address, on the interfaces
// where it would be announced. ok: one has, with that MAC.
func (a *Announcer) Probe(ctx context.Context, addr netip.Addr, devices []string, wait time.Duration) (mac MAC, ok bool) {
	return a.probe(ctx, addr, devices, wait, false)
}

// Answers asks three times in the time of wait whether a machine has an address, and reports whether it answers: whether this
// node is heard, and hears.
func (a *Announcer) Answers(ctx context.Context, addr netip.Addr, devices []string, wait time.Duration) bool {
	_, ok := a.probe(ctx, addr, devices, wait, true)
	return ok
}

func (a *Announcer) probe(ctx context.Context, addr netip.Addr, devices []string, wait time.Duration, answers bool) (mac MAC, ok bool) {
	heard := make(chan MAC, 1)
	a.mu.Lock()
	a.probes[addr] = probing{heard, answers}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.probes, addr)
		a.mu.Unlock()
	}()
	pause := time.NewTicker(wait / 3)
	defer pause.Stop()
	for range 3 {
		a.mu.Lock()
		for name, p := range a.ports {
			if a.onLocked(&announced{devices: devices}, name) {
				var source netip.Addr
				if answers {
					source = p.source
				}
				_ = p.send(probe(addr, p.mac, source)) // it is repeated
			}
		}
		a.mu.Unlock()
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return mac, false
			case mac := <-heard:
				return mac, true
			case <-pause.C:
				waiting = false
			}
		}
	}
	return mac, false
}
