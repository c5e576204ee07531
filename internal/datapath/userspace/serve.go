package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
)

// maxTries is how many blocks of ports start tries. An old agent that still runs has the first block.
const maxTries = 16

// start opens the listeners in the namespace of the calling thread, and begins to serve. The first scope has cfg.Port,
// or a later port if a port of the block is in use.
func start(cfg Config) (*proxy, error) {
	limits, err := newLimits(cfg.Log, cfg.Descriptors)
	if err != nil {
		return nil, err
	}
	where, err := currentNamespace()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background()) // close cancels it
	p := &proxy{
		netns: where, ctx: ctx, cancel: cancel, limits: limits, gate: cfg.Gate,
		frontends: map[service.Key]*proxyFrontend{}, targets: map[targetKey]*target{}, tallies: map[api.PortName]*tally{},
		flows: flows{all: map[flowKey]*udpFlow{}, sockets: map[netip.AddrPort]*replySocket{}},
	}
	p.flows.oneWay, p.flows.answered = idleTimes()
	p.leaveGate = p.gate.Join(p)
	for try := range maxTries {
		p.first = cfg.Port + uint16(try)*uint16(scopes)
		if err = p.listen(); err == nil || !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("open listeners: %w [needs CAP_NET_ADMIN]", err)
	}
	return p, nil
}

// listen opens all listeners. After an error it has opened none.
func (p *proxy) listen() error {
	var begin []func()
	for s := range scopes {
		for _, is4 := range nftset.Families {
			at := loopback(is4, p.first+uint16(s))
			l, err := p.netns.listenTCP(p.ctx, at)
			if err != nil {
				return errors.Join(err, p.closeListeners())
			}
			p.listeners = append(p.listeners, l)
			c, err := p.netns.listenUDP(p.ctx, at)
			if err != nil {
				return errors.Join(err, p.closeListeners())
			}
			p.listeners = append(p.listeners, c)
			begin = append(begin, func() { p.accept(l, s) }, func() { p.receive(c, s) })
		}
	}
	for _, f := range begin {
		p.running.Go(f)
	}
	return nil
}

// closeListeners closes the listeners.
func (p *proxy) closeListeners() (err error) {
	for _, l := range p.listeners {
		err = errors.Join(err, l.Close())
	}
	p.listeners = nil
	return err
}

// close ends all connections and goroutines, and waits for them.
func (p *proxy) close() {
	p.cancel()
	p.leaveGate()
	_ = p.closeListeners() // a listener may already be closed
	endSessions(p.sessions.list(func(*session) bool { return true }))
	p.running.Wait()
	p.netns.close()
}
