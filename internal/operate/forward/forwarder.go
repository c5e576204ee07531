package forward

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config is the configuration of a Forwarder. Dial and Tell are required.
type Config struct {
	// Dial opens a connection to a pod.
	Dial Dial
	// Hosts is the path of the hosts file; empty: no names, and free ports of 127.0.0.1 in place of loopback addresses.
	Hosts string
	// Short is the namespace whose Services have names without a namespace.
	Short string
	// Domain is the cluster's domain: "cluster.local".
	Domain string
	// Tell receives what happens. It is called by one goroutine at a time.
	Tell func(Event)
}

// A Forwarder serves Targets. Set and Rows may be called by any goroutine.
type Forwarder struct {
	cfg   Config
	ctx   context.Context
	serve sync.WaitGroup // listeners
	conns sync.WaitGroup // connections

	tell sync.Mutex

	mu        sync.Mutex
	addrs     map[string]netip.Addr // of a Service, or of a pod of a headless Service
	listeners map[key]*listener
	troubles  map[key]string // why a Target is not served
	hosts     string         // what was written last
	left      map[Left]bool
	news      []Event // of this Set
}

// New returns a Forwarder that serves until ctx ends. Close removes what it wrote.
func New(ctx context.Context, cfg Config) *Forwarder {
	return &Forwarder{cfg: cfg, ctx: ctx, addrs: map[string]netip.Addr{}, listeners: map[key]*listener{}, troubles: map[key]string{}, left: map[Left]bool{}}
}

// Set serves exactly these Targets. An error says that nothing can be served on this machine, or that the names cannot
// be written.
func (f *Forwarder) Set(targets []Target, left []Left) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.tellNews() // after the names are written
	wanted := map[key]bool{}
	for i := range targets {
		t := &targets[i]
		wanted[t.key()] = true
		if err := f.put(t); err != nil {
			return err
		}
	}
	for k, l := range f.listeners {
		if !wanted[k] {
			l.close()
			delete(f.listeners, k)
			f.later(Event{What: Gone, Target: f.name(k), At: l.at})
		}
	}
	for _, l := range left {
		if !f.left[l] {
			f.left[l] = true
			f.later(Event{What: NotForwarded, Target: leftName(l), Why: l.Why})
		}
	}
	return f.writeHosts()
}

// put serves one Target. Only a port that this user may not open is an error.
func (f *Forwarder) put(t *Target) error {
	k := t.key()
	if l := f.listeners[k]; l != nil {
		was := l.backends.Swap(&t.Backends)
		if !slices.Equal(*was, t.Backends) {
			f.later(Event{What: Pods, Target: f.name(k), At: l.at, Pods: podsOf(t.Backends)})
		}
		return nil
	}
	l := &listener{key: k, conns: &f.conns}
	l.backends.Store(&t.Backends)
	var err error
	if l.socket, err = f.open(k); err != nil {
		if !inUse(err) {
			return err
		}
		if why := err.Error(); f.troubles[k] != why {
			f.troubles[k] = why
			f.later(Event{What: NotForwarded, Target: f.name(k), Why: why + ": another program has this port on all addresses"})
		}
		return nil
	}
	delete(f.troubles, k)
	l.at = netip.MustParseAddrPort(l.socket.Addr().String())
	f.listeners[k] = l
	f.serve.Go(func() {
		l.serve(f.ctx, f.cfg.Dial, func(l *listener, err error) {
			f.say(Event{What: Failed, Target: f.name(l.key), At: l.at, Why: err.Error()})
		})
	})
	f.later(Event{What: Forwarded, Target: f.name(k), At: l.at, Names: f.names(k), Pods: podsOf(t.Backends)})
	return nil
}

// owner is the name by which the ports of a Service, or of a headless pod, share an address.
func (k key) owner() string {
	return strings.Trim(k.host+"."+k.service.Name+"."+k.service.Namespace, ".")
}

// open takes an address for a Target. A Service's ports share an address, so that its names lead to all of them.
func (f *Forwarder) open(k key) (*net.TCPListener, error) {
	if f.cfg.Hosts == "" {
		home := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if k.port >= 1024 {
			if l, err := listen(netip.AddrPortFrom(home, k.port)); err == nil {
				return l, nil
			}
		}
		return listen(netip.AddrPortFrom(home, 0))
	}
	if addr, ok := f.addrs[k.owner()]; ok {
		return listen(netip.AddrPortFrom(addr, k.port))
	}
	var err error
	for n := range tries {
		addr := candidate(k.owner(), n)
		var l *net.TCPListener
		if l, err = listen(netip.AddrPortFrom(addr, k.port)); err == nil {
			f.addrs[k.owner()] = addr
			return l, nil
		}
		if !inUse(err) {
			break
		}
	}
	return nil, err
}

// names returns the names of a Target in the cluster.
func (f *Forwarder) names(k key) []string {
	if f.cfg.Hosts == "" {
		return nil
	}
	name := strings.TrimPrefix(k.host+"."+k.service.Name, ".")
	space := name + "." + k.service.Namespace
	if k.cluster != "" {
		return []string{space + "." + k.cluster}
	}
	all := []string{space, space + ".svc", space + ".svc." + f.cfg.Domain}
	if k.service.Namespace == f.cfg.Short {
		all = append([]string{name}, all...)
	}
	return all
}

// name returns a Target's name for people: namespace/name:port.
func (f *Forwarder) name(k key) string {
	name := fmt.Sprintf("%s:%d", k.service, k.port)
	if k.host != "" {
		name = fmt.Sprintf("%s/%s.%s:%d", k.service.Namespace, k.host, k.service.Name, k.port)
	}
	if k.cluster != "" {
		name += " of " + k.cluster
	}
	return name
}

func leftName(l Left) string {
	if l.Port == 0 {
		return l.Service.String()
	}
	return fmt.Sprintf("%s:%d", l.Service, l.Port)
}

func podsOf(all []Backend) (names []string) {
	for _, b := range all {
		names = append(names, b.Pod.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// writeHosts writes the names of all listeners, if they have changed.
func (f *Forwarder) writeHosts() error {
	if f.cfg.Hosts == "" {
		return nil
	}
	lines := map[string]bool{}
	for k, l := range f.listeners {
		lines[l.at.Addr().String()+"\t"+strings.Join(f.names(k), " ")] = true
	}
	all := slices.Sorted(maps.Keys(lines))
	if text := strings.Join(all, "\n"); text != f.hosts {
		if err := WriteHosts(f.cfg.Hosts, os.Getpid(), all); err != nil {
			return err
		}
		f.hosts = text
	}
	return nil
}

// later tells an event when Set is done.
func (f *Forwarder) later(e Event) { f.news = append(f.news, e) }

func (f *Forwarder) tellNews() {
	for _, e := range f.news {
		f.say(e)
	}
	f.news = nil
}

// say tells an event.
func (f *Forwarder) say(e Event) {
	f.tell.Lock()
	defer f.tell.Unlock()
	e.Time = time.Now()
	f.cfg.Tell(e)
}

// Close ends all listeners and their connections, after the Forwarder's ctx has ended, and removes the names.
func (f *Forwarder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.listeners {
		l.close()
	}
	f.serve.Wait()
	f.conns.Wait()
	if f.cfg.Hosts == "" || f.hosts == "" {
		return nil
	}
	return WriteHosts(f.cfg.Hosts, os.Getpid(), nil)
}

// Rows returns what is forwarded now, sorted by name.
func (f *Forwarder) Rows() []Row {
	f.mu.Lock()
	defer f.mu.Unlock()
	var rows []Row
	for k, l := range f.listeners {
		r := Row{Target: f.name(k), At: l.at, Pods: podsOf(*l.backends.Load()), Open: l.Open.Load(), Sent: l.Sent.Load(), Received: l.Received.Load(),
			Moved: l.Moved.Load(), Failed: l.Failed.Load()}
		if names := f.names(k); len(names) > 0 {
			r.Name = names[0]
		}
		if why := l.failure.Load(); why != nil {
			r.Why = *why
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Target, b.Target) })
	return rows
}
