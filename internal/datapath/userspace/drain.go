package userspace

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Some packets reach the proxy only through the element of their frontend: the packets of a UDP flow, and TCP packets
// that the node itself sends. When the frontend is removed, each of these connections that continues gets an element in
// the set orphaned-connections.

// orphanElement returns the element of a connection.
func orphanElement(s *session) element {
	key := addrPortText(s.client) + addrPortText(s.dest) + string([]byte{byte(s.proto), 0, 0, 0})
	return element{set: orphanedConnections, is4: s.client.Addr().Is4(), key: key}
}

// needsFrontend reports whether a connection's packets need the element of the frontend.
func needsFrontend(s *session) bool { return s.proto == api.UDP || s.scope == fromNode }

// losingFrontend returns the TCP connections that lose their frontend and need its element. They continue, as with
// conntrack in other modes. UDP flows end with the frontend.
func (d *Datapath) losingFrontend(changes []service.Change) []*session {
	going := map[service.Key]bool{}
	for _, c := range changes {
		if c.New == nil || c.New.Internal.Action != service.Forward {
			going[c.Key()] = true
		}
	}
	if len(going) == 0 {
		return nil
	}
	return d.proxy.sessions.list(func(s *session) bool {
		return s.proto == api.TCP && needsFrontend(s) && going[s.front]
	})
}

// addOrphans writes elements for connections to the kernel.
func (d *Datapath) addOrphans(ctx context.Context, all []*session) error {
	var ws []nft.Write
	var news []element
	for _, s := range all {
		e := orphanElement(s)
		if _, ok := d.orphaned[e.id()]; !ok {
			ws, news = append(ws, e.write(false, true)), append(news, e)
		}
	}
	if err := d.rules.Commit(ctx, nil, ws); err != nil {
		return fmt.Errorf("keep connections: %w", err)
	}
	if d.orphaned == nil {
		d.orphaned = map[elementID]element{}
	}
	for _, e := range news {
		d.orphaned[e.id()] = e
	}
	return nil
}

// endedOrphans returns the elements of connections that have ended.
func (d *Datapath) endedOrphans() (all []element) {
	if len(d.orphaned) == 0 {
		return nil
	}
	alive := map[elementID]bool{}
	for _, s := range d.proxy.sessions.list(needsFrontend) {
		alive[orphanElement(s).id()] = true
	}
	for i, e := range d.orphaned {
		if !alive[i] {
			all = append(all, e)
		}
	}
	return all
}

// unservedFlows returns the UDP flows that no frontend serves any more, at the address that the client called.
func (p *proxy) unservedFlows() []*session {
	var gone []*session
	for _, s := range p.sessions.list(func(s *session) bool { return s.proto == api.UDP }) {
		if f := p.find(api.UDP, s.dest); f == nil || f.Key() != s.front {
			gone = append(gone, s)
		}
	}
	return gone
}

// Drain implements datapath.Datapath. It removes the frontends from the kernel, and lets connections continue until
// they end.
func (d *Datapath) Drain(ctx context.Context) (done bool, err error) {
	if d.proxy == nil { // this process has no connections
		return true, d.Cleanup(ctx)
	}
	if !d.draining {
		if err := d.removeFrontends(ctx); err != nil {
			d.forget()
			return false, fmt.Errorf("drain userspace: %w", err)
		}
		d.draining = true
		return false, nil // packets may be in flight
	}
	if len(d.proxy.sessions.list(func(*session) bool { return true })) == 0 {
		return true, d.Cleanup(ctx)
	}
	return false, nil
}

// removeFrontends writes elements for the connections, and then removes the frontends.
func (d *Datapath) removeFrontends(ctx context.Context) error {
	if err := d.addOrphans(ctx, d.proxy.sessions.list(needsFrontend)); err != nil {
		return err
	}
	h, err := d.read(ctx)
	if err != nil {
		return err
	}
	p := fullChangeset(h, &service.Table{})
	p.shared(h.settings, service.Settings{}, h.owned, nil, true)
	if err := d.rules.Commit(ctx, nil, p.writes()); err != nil {
		return err
	}
	// Flows may have begun since the first call.
	if err := d.addOrphans(ctx, d.proxy.sessions.list(needsFrontend)); err != nil {
		return err
	}
	d.table = nil
	d.rules.Watch.Reset()
	return nil
}
