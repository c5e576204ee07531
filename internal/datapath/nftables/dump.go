package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"

	"github.com/fairway-net/fairway/internal/service"
)

// Dump implements datapath.Datapath. Without our table in the kernel the result is
// empty.
func (d *Datapath) Dump(context.Context) (*service.Table, error) {
	there, err := d.kernel.chains()
	if err != nil {
		return nil, fmt.Errorf("dump nftables: %w", err)
	}
	if len(there) == 0 {
		return &service.Table{}, nil
	}
	s, err := d.kernel.read()
	if err != nil {
		return nil, fmt.Errorf("dump nftables: %w", err)
	}
	var all []*service.Frontend
	for k, h := range s.frontends {
		f, err := s.frontend(k, h)
		if err != nil {
			return nil, fmt.Errorf("dump nftables: %w", err)
		}
		if f != nil {
			all = append(all, f)
		}
	}
	return service.NewTable(s.settings, all), nil
}

// frontend translates what is held for k. Endpoints that no frontend leads to do
// nothing, so they are not part of the table.
func (s *state) frontend(k service.Key, h *held) (*service.Frontend, error) {
	if h.inside == 0 {
		return nil, nil
	}
	name, err := service.ParsePortName(h.name)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", k, err)
	}
	inside := s.route(h.inside, h.slots)
	f := &service.Frontend{
		Addr: k.Addr, Proto: k.Proto, Service: name, Inside: inside, Outside: inside,
		Reserved: s.reserved[k.Addr.Addr()] > 0,
		Affinity: time.Duration(h.seconds) * time.Second,
	}
	for _, r := range h.sources {
		f.Sources = append(f.Sources, r.Prefixes()...)
	}
	if h.outside != 0 {
		f.Outside = s.route(h.outside, h.outsideSlots)
	}
	return f, nil
}

// route translates a how and its slots. Only as many slots as the how picks from are
// endpoints.
func (s *state) route(h how, slots []netip.AddrPort) *service.Route {
	r := h.route()
	ok, n, _ := h.forwards()
	if !ok || n == 0 {
		return r
	}
	for _, a := range slots[:min(int(n), len(slots))] {
		if a.IsValid() {
			r.Endpoints = append(r.Endpoints, service.Endpoint{Addr: a, Local: s.hairpins[a.Addr()] > 0})
		}
	}
	slices.SortFunc(r.Endpoints, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return r
}

// Cleanup implements datapath.Datapath.
func (d *Datapath) Cleanup(context.Context) error {
	defer d.Close()
	there, err := d.kernel.chains()
	if err != nil || len(there) == 0 {
		return err
	}
	c, err := d.kernel.conn()
	if err != nil {
		return err
	}
	c.DelTable(&nftables.Table{Name: tableName, Family: nftables.TableFamilyINet})
	if err := d.kernel.flush(c); err != nil {
		return fmt.Errorf("delete table %s: %w", tableName, err)
	}
	return nil
}
