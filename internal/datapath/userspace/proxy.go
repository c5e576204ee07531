package userspace

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
)

// A proxy has the listeners, and all state that they need to serve a client.
type proxy struct {
	netns     *netNamespace
	first     uint16 // port of the first scope's listeners
	ctx       context.Context
	cancel    context.CancelFunc
	running   sync.WaitGroup
	listeners []interface{ Close() error }
	affinity  affinityTable
	buffers   buffers
	limits    *limits
	gate      *flow.Gate
	leaveGate func()

	mu        sync.RWMutex
	frontends map[service.Key]*proxyFrontend
	targets   map[targetKey]*target
	tallies   map[api.PortName]*tally
	settings  service.Settings // for ServesNodePorts

	sessions sessions
	flows    flows
}

type targetKey struct {
	service api.PortName
	proto   api.Proto
	addr    netip.AddrPort
}

// A proxyFrontend is a frontend with the state to serve it. It is replaced, never changed.
type proxyFrontend struct {
	*service.Frontend
	internal, external *pool
	tally              *tally
}

// A tally counts the traffic of a Service port.
type tally struct {
	connections, bytes, drops atomic.Uint64
	fronts                    int // number of frontends that use the tally; guarded by the proxy's mutex
}

// decide returns the decision for a client from a scope, and the pool of its route.
func (f *proxyFrontend) decide(s scope, client netip.Addr) (service.Decision, *pool) {
	d := f.Decide(service.Packet{From: client, To: f.Addr, Proto: f.Proto, FromPod: s == fromPod, FromNode: s == fromNode})
	if d.Packet.Internal() {
		return d, f.internal
	}
	return d, f.external
}

// keepsSource reports whether the endpoint sees the client's own address. For the node's own connections the kernel
// chooses the source.
func keepsSource(d service.Decision, e service.Endpoint) bool {
	return !d.Packet.FromNode && !d.Masquerades(e)
}

// find returns the frontend that answers at an address, or nil. The kernel sends only packets for this node.
func (p *proxy) find(proto api.Proto, at netip.AddrPort) *proxyFrontend {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return service.Answering(p.frontends, &p.settings, service.Key{Addr: at, Proto: proto}, true)
}

// set applies changes. It does not remove frontends: removeGone does.
func (p *proxy) set(changes []service.Change, s service.Settings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings = s
	for _, c := range changes {
		if c.New != nil {
			p.setFrontend(c.New)
		}
	}
}

// removeGone removes the frontends that were served until the kernel stopped sending clients to them. If all is true,
// changes has every wanted frontend, and the affinity of clients of all other Services is forgotten.
func (p *proxy) removeGone(changes []service.Change, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if all {
		defer func() { p.affinity.retainPorts(maps.Keys(p.tallies)) }()
	}
	for _, c := range changes {
		if c.New == nil {
			if f := p.frontends[c.Key()]; f != nil {
				p.release(f)
				delete(p.frontends, c.Key())
			}
		}
	}
}

// setFrontend makes the proxyFrontend of f. The caller holds mu.
func (p *proxy) setFrontend(f *service.Frontend) {
	old := p.frontends[f.Key()]
	if old != nil && old.Frontend == f {
		return // a Frontend is immutable
	}
	is := &proxyFrontend{Frontend: f, tally: p.tally(f.Service)}
	var wasIn, wasOut *pool
	if old != nil {
		wasIn, wasOut = old.internal, old.external
	}
	take := func(e *service.Endpoint, had *target) *target {
		if had == nil || old.Service != f.Service {
			had = p.target(f, e.Addr) // only if necessary: tens of thousands of map accesses take milliseconds
		}
		had.pools++
		return had
	}
	is.internal = newPool(f.Balance, f.Internal.Endpoints, wasIn, take)
	is.external = is.internal
	if !f.External.Equal(f.Internal) {
		is.external = newPool(f.Balance, f.External.Endpoints, wasOut, take)
	}
	p.frontends[f.Key()] = is
	if old != nil {
		p.release(old)
		if f.Affinity > 0 || old.Affinity > 0 {
			p.affinity.prune(old.Frontend, f)
		}
	}
}

func (p *proxy) tally(name api.PortName) *tally {
	t := p.tallies[name]
	if t == nil {
		t = &tally{}
		p.tallies[name] = t
	}
	t.fronts++
	return t
}

func (p *proxy) target(f *service.Frontend, addr netip.AddrPort) *target {
	k := targetKey{f.Service, f.Proto, addr}
	t := p.targets[k]
	if t == nil {
		t = &target{addr: addr, ports: budget{total: p.limits.tcpPorts}}
		p.targets[k] = t
	}
	return t
}

// release releases the targets and the tally of a removed frontend.
func (p *proxy) release(f *proxyFrontend) {
	if f.tally.fronts--; f.tally.fronts == 0 {
		delete(p.tallies, f.Service)
		p.affinity.forgetService(f.Service)
	}
	pools := []*pool{f.internal}
	if f.external != f.internal {
		pools = append(pools, f.external)
	}
	for _, in := range pools {
		for _, m := range in.members {
			if m.target.pools--; m.target.pools == 0 {
				delete(p.targets, targetKey{f.Service, f.Proto, m.addr})
			}
		}
	}
}

// chooseMember returns the member for a client: the member that affinity remembers, or else the algorithm's choice
// among the untried members.
func (p *proxy) chooseMember(f *proxyFrontend, r *service.Route, in *pool, c pickKey, tried []*target) *member {
	pick := func() *member { return in.choose(c, tried) }
	if f.Affinity == 0 {
		return pick()
	}
	return p.affinity.claim(f.Frontend, r, c.client, in, tried, pick)
}

// counts returns the traffic of each Service port.
func (p *proxy) counts() map[api.PortName]datapath.Count {
	p.mu.RLock()
	defer p.mu.RUnlock()
	all := make(map[api.PortName]datapath.Count, len(p.tallies))
	for name, t := range p.tallies {
		all[name] = datapath.Count{Connections: t.connections.Load(), Bytes: t.bytes.Load(), Drops: t.drops.Load()}
	}
	return all
}
