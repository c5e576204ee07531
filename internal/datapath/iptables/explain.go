package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// Explain implements datapath.Datapath. It returns the rules of the shared chains that
// match the frontend, and every chain of the Service that they lead to. It reads everything.
func (d *Datapath) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	s := d.newSnapshot()
	if err := d.choose(ctx, s); err != nil {
		return nil, fmt.Errorf("explain iptables: %w", err)
	}
	h, err := s.of(ctx, d.variant, k.Addr.Addr().Is4())
	if err != nil {
		return nil, fmt.Errorf("explain iptables: %w", err)
	}
	var all []datapath.Object
	var chains []chain
	for _, c := range []chain{{nat, services}, {nat, nodeports}, {filter, services}, {filter, externals}, {filter, nodeports}, {filter, firewall}} {
		for _, text := range h.chains[c] {
			if r := parse(text); r.matchesFrontend(k) && r.nodePort(c) == k.Addr.Addr().IsUnspecified() {
				all = append(all, datapath.Object{Kind: "rule", Name: c.table + " " + c.name, Text: text})
				chains = append(chains, chain{c.table, r.jump})
			}
		}
	}
	seen := map[chain]bool{}
	for ; len(chains) > 0; chains = chains[1:] {
		c := chains[0]
		if seen[c] || !xtables.PerService(c.name) {
			continue
		}
		seen[c] = true
		for _, text := range h.chains[c] {
			all = append(all, datapath.Object{Kind: "rule", Name: c.table + " " + c.name, Text: text})
			target, _, _ := strings.Cut(parse(text).jump, " ")
			chains = append(chains, chain{c.table, target})
		}
	}
	return all, nil
}

// matchesFrontend reports whether a rule matches packets to a frontend.
func (r rule) matchesFrontend(k service.Key) bool {
	if r.proto != k.Proto || r.port != k.Addr.Port() {
		return false
	}
	if k.Addr.Addr().IsUnspecified() {
		return true
	}
	p, err := netip.ParsePrefix(r.dst)
	return err == nil && p.IsSingleIP() && p.Addr() == k.Addr.Addr()
}

// nodePort reports whether a rule in c is for a port of the node.
func (r rule) nodePort(c chain) bool {
	return c.name == nodeports || c.name == externals && r.dst == ""
}
