package nftables

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftset"
	"github.com/fairway-net/fairway/internal/service"
)

// Explain implements datapath.Datapath. It reads the whole table from the kernel.
func (d *Datapath) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	return d.syncer.Explain(ctx, k)
}

// Adopt implements datapath.Datapath.
func (d *Datapath) Adopt(ctx context.Context) (datapath.Adopted, error) {
	return d.syncer.Adopt(ctx, d.table == nil, func(s *state) (*service.Table, error) {
		if d.state == nil {
			d.adopted = s
		}
		return s.table()
	})
}

// table translates the state to a Table.
func (s *state) table() (*service.Table, error) {
	var all []*service.Frontend
	for k, h := range s.frontends {
		f, err := s.frontend(k, h)
		if err != nil {
			return nil, err
		}
		if f != nil {
			all = append(all, f)
		}
	}
	return service.NewTable(s.settings.table(), all), nil
}

// frontend translates the state of one frontend. It returns nil if the frontend has no verdict: endpoints that no
// verdict leads to have no effect.
func (s *state) frontend(k service.Key, h *frontendState) (*service.Frontend, error) {
	if h.internalVerdict() == 0 {
		return nil, nil
	}
	name, err := api.ParsePortName(h.name)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", k, err)
	}
	extra := h.extraOrZero()
	internal := s.route(h.internalVerdict(), h.slots)
	internal.Local = extra.local && internal.Action == service.Forward
	f := &service.Frontend{
		Addr: k.Addr, Proto: k.Proto, Service: name, Internal: internal, External: internal,
		ClusterIP: s.clusterIPs[k.Addr.Addr()] > 0, Balance: h.balance, LoadBalancer: h.loadBalancer,
		Affinity: time.Duration(extra.seconds) * time.Second,
	}
	f.OnNode = f.OwnsAddress() && s.externals[k.Addr.Addr()] == 0
	if h.entry != verdictPolicyCheck {
		return f, nil
	}
	f.Sources = extra.sources.Prefixes()
	if extra.external != 0 {
		f.External = s.route(extra.external, extra.externalSlots)
		f.External.Local = extra.localExternal && f.External.Action == service.Forward
	}
	return f, nil
}

// route translates a verdict ID and its slots. The ID says how many of the slots are in use.
func (s *state) route(v verdictID, slots []slot) *service.Route {
	if v.isDedicated() {
		v = s.verdictOf(v)
	}
	r := nftset.VerdictID(v).Route()
	n, _ := v.slots()
	if !v.balances() || n == 0 {
		return r
	}
	for _, at := range slots[:min(int(n), len(slots))] {
		if at.filled() {
			addr := at.addr()
			r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: addr, Local: s.hairpins[addr.Addr()] > 0, Weight: at.weight})
		}
	}
	slices.SortFunc(r.Endpoints, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	r.Endpoints = slices.CompactFunc(r.Endpoints, func(a, b service.Endpoint) bool { return a.Addr == b.Addr })
	return r
}

// Cleanup implements datapath.Datapath.
func (d *Datapath) Cleanup(ctx context.Context) error {
	d.forget()
	if err := d.syncer.Table.Delete(ctx); err != nil {
		return fmt.Errorf("clean up nftables: %w", err)
	}
	return nil
}
