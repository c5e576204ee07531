package userspace

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Some packets of a connection find the proxy only by its frontend: all of a UDP flow, and
// what the node itself sends over TCP. When the frontend goes, the connections that
// stay are named one by one, in the set
// orphaned-connections.

// orphanElement names a connection.
func orphanElement(s *session) element {
	key := addrPortText(s.client) + addrPortText(s.dest) + string([]byte{byte(s.proto), 0, 0, 0})
	return element{set: orphanedConnections, is4: s.client.Addr().Is4(), key: key}
}

// needsFrontend reports whether a connection cannot live without its frontend.
func needsFrontend(s *session) bool { return s.proto == service.UDP || s.scope == fromNode }

// losingFrontend returns the connections whose frontend changes remove: those of TCP go
// on, as conntrack lets them in other modes. Flows end with it.
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
		return s.proto == service.TCP && needsFrontend(s) && going[s.front]
	})
}

// addOrphans writes the names of connections to the kernel.
func (d *Datapath) addOrphans(ctx context.Context, all []*session) error {
	var ws []nft.Write
	var news []element
	for _, s := range all {
		e := orphanElement(s)
		if _, ok := d.orphaned[e.id()]; !ok {
			ws, news = append(ws, e.write(false, true)), append(news, e)
		}
	}
	if err := d.rules.Table.Commit(ctx, nil, ws); err != nil {
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

// endedOrphans returns the names of connections that have ended.
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

// unservedFlows returns the UDP flows whose frontend or NodePort address is served no more.
func (p *proxy) unservedFlows() []*session {
	var gone []*session
	for _, s := range p.sessions.list(func(s *session) bool { return s.proto == service.UDP }) {
		if f := p.find(service.UDP, s.dest); f == nil || f.Key() != s.front {
			gone = append(gone, s)
		}
	}
	return gone
}

// Drain implements datapath.Datapath: the frontends go from the kernel, the connections
// stay until they end.
func (d *Datapath) Drain(ctx context.Context) (done bool, err error) {
	if d.proxy == nil { // nothing of this process is open
		return true, d.Cleanup(ctx)
	}
	if !d.draining {
		if err := d.removeFrontends(ctx); err != nil {
			d.forget()
			return false, fmt.Errorf("drain userspace: %w", err)
		}
		d.draining = true
		return false, nil // somebody may be on the way
	}
	if len(d.proxy.sessions.list(func(*session) bool { return true })) == 0 {
		return true, d.Cleanup(ctx)
	}
	return false, nil
}

// removeFrontends names the connections, and then takes the frontends away.
func (d *Datapath) removeFrontends(ctx context.Context) error {
	if err := d.addOrphans(ctx, d.proxy.sessions.list(needsFrontend)); err != nil {
		return err
	}
	h, err := d.read(ctx)
	if err != nil {
		return err
	}
	p := full(h, &service.Table{})
	p.shared(h.settings, service.Settings{}, h.clusterIPs, nil, true)
	if err := d.rules.Table.Commit(ctx, nil, p.writes()); err != nil {
		return err
	}
	// Flows that began meanwhile.
	if err := d.addOrphans(ctx, d.proxy.sessions.list(needsFrontend)); err != nil {
		return err
	}
	d.table = nil
	d.rules.Watch.Reset()
	return nil
}
