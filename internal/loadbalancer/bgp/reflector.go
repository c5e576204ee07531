package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	gobgp "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
)

// maxOfClient is the number of prefixes that a client node may send: its podCIDRs.
const maxOfClient = 100

// A reflector is this node's route reflector. Client nodes connect to it. It passes routes from routers to the clients,
// and the clients' podCIDRs to the routers. It passes nothing between clients, which know each other from Node objects.
type reflector struct {
	asn     uint32
	id      netip.Addr
	listen  []netip.Addr
	log     *slog.Logger
	server  *server.BgpServer
	table   *session // holds the routes for the clients; it has no router
	clients map[netip.Addr]announce.Client
	ledger  *ledger
	unwatch context.CancelFunc // ends the watch of the server

	mu sync.Mutex
	up map[netip.Addr]bool
}

// newReflector listens for clients. routes counts what they send. changed is called when a client's session changes, and
// received when a client has changed its routes.
func newReflector(log *slog.Logger, want *announce.Reflector, routes *ledger, changed, received func()) (*reflector, error) {
	r := &reflector{ledger: routes, asn: want.ASN, id: want.RouterID, listen: want.Listen, log: log, clients: map[netip.Addr]announce.Client{}, up: map[netip.Addr]bool{}}
	r.server = server.NewBgpServer(server.LoggerOption(slog.New(clientLog{r: r}), new(slog.LevelVar)))
	go r.server.Serve()
	var listen []string
	for _, a := range want.Listen {
		listen = append(listen, a.String())
	}
	ctx := context.Background()
	watching, unwatch := context.WithCancel(ctx)
	r.unwatch = unwatch
	err := r.server.StartBgp(ctx, &gobgp.StartBgpRequest{Global: &gobgp.Global{
		Asn: want.ASN, RouterId: want.RouterID.String(), ListenPort: int32(want.Port), ListenAddresses: listen,
	}})
	if err == nil {
		err = rejectReceived(ctx, r.server)
	}
	if err == nil {
		err = watchServer(watching, r.server, r.changed(changed), received)
	}
	if err != nil {
		r.stop()
		return nil, fmt.Errorf("listen as a route reflector: %w", err)
	}
	r.table = &session{config: announce.SessionConfig{LocalASN: want.ASN, PeerASN: want.ASN}, log: slog.New(slog.DiscardHandler), server: r.server, advertised: map[netip.Prefix]announce.Route{}}
	log.Info("this node is a route reflector", "asn", want.ASN, "listen", listen, "port", want.Port)
	return r, nil
}

// changed returns a function that logs changes of the clients' sessions, and calls notify.
func (r *reflector) changed(notify func()) func(*peerState, bool) {
	return func(state *peerState, up bool) {
		node := state.NeighborAddress
		r.mu.Lock()
		before := r.up[node]
		r.up[node] = up
		r.mu.Unlock()
		if up != before {
			if !up {
				r.ledger.forget(clientSender{r, node})
			}
			r.log.Info("route reflector: the session with a node changed", "address", node, "up", up)
			notify()
		}
	}
}

// sameConfig reports whether the reflector can serve want without a new start.
func (r *reflector) sameConfig(want *announce.Reflector) bool {
	return want != nil && r.asn == want.ASN && r.id == want.RouterID && slices.Equal(r.listen, want.Listen)
}

// sync replaces the clients.
func (r *reflector) sync(want []announce.Client) error {
	ctx := context.Background()
	all := map[netip.Addr]announce.Client{}
	for _, c := range want {
		all[c.Address.Addr()] = c
	}
	for addr, have := range r.clients {
		if c, ok := all[addr]; ok && c.SessionConfig == have.SessionConfig {
			r.clients[addr] = c
			continue
		}
		if err := r.server.DeletePeer(ctx, &gobgp.DeletePeerRequest{Address: addr.String()}); err != nil {
			return fmt.Errorf("end the session with node %s: %w", have.Peer, err)
		}
		delete(r.clients, addr)
		r.ledger.forget(clientSender{r, addr})
	}
	for addr, c := range all {
		if _, ok := r.clients[addr]; ok {
			continue
		}
		p := peer(c.SessionConfig, false)
		p.Transport.PassiveMode = true
		p.Conf.AllowAspathLoopLocal = true // routes to other nodes come back from routers with the nodes' AS in their path
		// Packets of a node's pods have made one hop already, and are refused (RFC 5082).
		p.TtlSecurity = &gobgp.TtlSecurity{Enabled: true, TtlMin: hopLimit}
		for _, f := range p.AfiSafis {
			f.PrefixLimits.MaxPrefixes = maxOfClient
		}
		if err := r.server.AddPeer(ctx, &gobgp.AddPeerRequest{Peer: p}); err != nil {
			return fmt.Errorf("await the session of node %s: %w", c.Peer, err)
		}
		r.clients[addr] = c
	}
	return nil
}

// clientPodCIDRs returns the podCIDRs that clients announce, each with its node as next hop. A client may announce only
// its own podCIDRs.
func (r *reflector) clientPodCIDRs() (all []announce.Route) {
	for addr, c := range r.clients {
		for _, o := range receivedPathsOf(r.server, c.SessionConfig, addr, r.log) {
			if slices.Contains(c.PodCIDRs, o.Prefix) && o.NextHop.Is4() == o.Prefix.Addr().Is4() {
				all = append(all, announce.Route{Prefix: o.Prefix, NextHop: o.NextHop})
			}
		}
	}
	return all
}

// reset ends the session with a client, which may connect again.
func (r *reflector) reset(client netip.Addr, reason string) {
	err := r.server.ResetPeer(context.Background(), &gobgp.ResetPeerRequest{Address: client.String(), Communication: reason})
	if err != nil {
		r.log.Warn("route reflector: cannot end a session", "address", client, "err", err)
	}
}

// advertise sends the best of these routes to the clients.
func (r *reflector) advertise(all []receivedPath) error {
	best := map[netip.Prefix]receivedPath{}
	for _, o := range all {
		if have, ok := best[o.Prefix]; !ok || o.compare(have) > 0 || o.compare(have) == 0 && o.NextHop.Less(have.NextHop) {
			best[o.Prefix] = o
		}
	}
	var routes []announce.Route
	for _, o := range best {
		routes = append(routes, announce.Route{Prefix: o.Prefix, NextHop: o.NextHop, LocalPref: o.pref, ASPath: o.path})
	}
	return r.table.setRoutes(routes)
}

// stop ends all sessions.
func (r *reflector) stop() {
	r.server.Stop()
	r.unwatch()
	for addr := range r.clients {
		r.ledger.forget(clientSender{r, addr})
	}
}

// reflect starts, changes or ends this node's route reflector. It returns the time until the next try; 0: none. s.mu is
// held.
func (s *Speaker) reflect(want *announce.Reflector) (next time.Duration) {
	if s.reflector != nil && !s.reflector.sameConfig(want) {
		s.reflector.stop()
		s.reflector = nil
		s.reflects.Store(false)
		s.cfg.Log.Info("the sessions of this route reflector end")
	}
	if want == nil {
		return 0
	}
	if s.reflector == nil {
		r, err := newReflector(s.cfg.Log, want, s.ledger, s.notify, s.podRoutes.notify)
		if err != nil {
			s.cfg.Log.Error("cannot become a route reflector, will try again", "err", err, "again", retryPause)
			return retryPause
		}
		s.reflector = r
		s.reflects.Store(true)
	}
	for _, c := range want.Clients {
		if reason, lost := s.liveness.takeLost(c.SessionConfig); lost {
			s.reflector.reset(c.Address.Addr(), "BFD: "+reason)
		}
	}
	if err := s.reflector.sync(want.Clients); err != nil {
		s.cfg.Log.Error("cannot change the sessions of a route reflector, will try again", "err", err, "again", retryPause)
		return retryPause
	}
	return 0
}

// reflectedPodCIDRs returns the clients' podCIDRs for the router of a session. s.mu is held.
func (s *Speaker) reflectedPodCIDRs(to announce.Session) []announce.Route {
	if s.reflector == nil || to.Reflected {
		return nil
	}
	return slices.DeleteFunc(s.reflector.clientPodCIDRs(), func(r announce.Route) bool {
		return r.Prefix.Addr().Is4() && !to.IPv4 || r.Prefix.Addr().Is6() && !to.IPv6
	})
}

// advertiseToClients passes the routers' routes to the clients. It returns the time until the next try; 0: none. s.mu
// is held.
func (s *Speaker) advertiseToClients() (next time.Duration) {
	if s.reflector == nil {
		return 0
	}
	var all []receivedPath
	for _, have := range s.sessions {
		if !have.config.Reflected {
			all = append(all, have.receivedPaths()...)
		}
	}
	if err := s.reflector.advertise(all); err != nil {
		s.cfg.Log.Error("cannot pass on the routers' routes, will try again", "err", err, "again", retryPause)
		return retryPause
	}
	return 0
}
