package userspace

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/nft"
	"github.com/fairway-net/fairway/internal/service"
)

// Some packets of a connection find the proxy only by its frontend: all of a UDP flow, and
// what the node itself sends over TCP. When the frontend goes, the connections that
// stay are named one by one, in the set kept.

// readKept returns what the kernel has of it.
func readKept(ctx context.Context, t *nft.Table) (map[id]element, error) {
	all := map[id]element{}
	for _, is4 := range families {
		err := t.Elements(ctx, kept.name(is4), func(e nft.Element) error {
			one := element{set: kept, is4: is4, key: string(e.Key)}
			all[one.id()] = one
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// keptElement names a connection.
func keptElement(s *session) element {
	key := endpoint(s.client) + endpoint(s.dest) + string([]byte{byte(s.proto), 0, 0, 0})
	return element{set: kept, is4: s.client.Addr().Is4(), key: key}
}

// needsKeeping reports whether a connection cannot live without its frontend.
func needsKeeping(s *session) bool { return s.proto == service.UDP || s.scope == fromNode }

// lost returns the connections that changes take the frontend from: those of TCP shall go
// on, as conntrack lets them in other modes. Flows end with it.
func (d *Datapath) lost(changes []service.Change) []*session {
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
		return s.proto == service.TCP && needsKeeping(s) && going[s.front]
	})
}

// keep writes the names of connections to the kernel.
func (d *Datapath) keep(ctx context.Context, all []*session) error {
	var ws []nft.Write
	var news []element
	for _, s := range all {
		e := keptElement(s)
		if _, ok := d.kept[e.id()]; !ok {
			ws, news = append(ws, e.write(false, true)), append(news, e)
		}
	}
	if err := d.kernel.Commit(ctx, nil, ws); err != nil {
		return fmt.Errorf("keep connections: %w", err)
	}
	if d.kept == nil {
		d.kept = map[id]element{}
	}
	for _, e := range news {
		d.kept[e.id()] = e
	}
	return nil
}

// over returns the names of connections that have ended.
func (d *Datapath) over() (all []element) {
	if len(d.kept) == 0 {
		return nil
	}
	alive := map[id]bool{}
	for _, s := range d.proxy.sessions.list(needsKeeping) {
		alive[keptElement(s).id()] = true
	}
	for i, e := range d.kept {
		if !alive[i] {
			all = append(all, e)
		}
	}
	return all
}

// orphans returns the UDP flows whose frontend or NodePort address is served no more.
func (p *proxy) orphans() []*session {
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
	if !d.gone {
		if err := d.leave(ctx); err != nil {
			d.forget()
			return false, fmt.Errorf("drain userspace: %w", err)
		}
		d.gone = true
		return false, nil // somebody may be on the way
	}
	if len(d.proxy.sessions.list(func(*session) bool { return true })) == 0 {
		return true, d.Cleanup(ctx)
	}
	return false, nil
}

// leave names the connections, and then takes the frontends away.
func (d *Datapath) leave(ctx context.Context) error {
	if err := d.keep(ctx, d.proxy.sessions.list(needsKeeping)); err != nil {
		return err
	}
	h, err := read(ctx, d.kernel)
	if err != nil {
		return err
	}
	p := full(h, &service.Table{})
	p.reserving(nil, h.reserved)
	p.settings(h.settings, service.Settings{})
	if err := d.kernel.Commit(ctx, nil, p.writes()); err != nil {
		return err
	}
	// Flows that began meanwhile.
	if err := d.keep(ctx, d.proxy.sessions.list(needsKeeping)); err != nil {
		return err
	}
	d.table = nil
	d.watch.Reset()
	return nil
}
