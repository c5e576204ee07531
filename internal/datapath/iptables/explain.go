package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// Explain implements datapath.Datapath. It returns the rules of shared chains that match the frontend, and the rules of
// each chain to which they lead. It reads all rules.
func (d *Datapath) Explain(ctx context.Context, k service.Key) ([]datapath.Object, error) {
	s := read.NewSnapshot(&d.reader)
	if err := d.chooseVariant(ctx, s); err != nil {
		return nil, fmt.Errorf("explain iptables: %w", err)
	}
	state, err := s.Of(ctx, d.variant, k.Addr.Addr().Is4())
	if err != nil {
		return nil, fmt.Errorf("explain iptables: %w", err)
	}
	var all []datapath.Object
	var chains []chain
	for _, c := range []chain{
		natChain(xtables.KubeServices), natChain(xtables.KubeNodePorts), filterChain(xtables.KubeServices),
		filterChain(xtables.KubeExternalServices), filterChain(xtables.KubeNodePorts), filterChain(xtables.KubeProxyFirewall),
	} {
		for _, text := range state.Chains[c] {
			if r := parse(text); r.matchesFrontend(k) && r.nodePort(c) == k.Addr.Addr().IsUnspecified() {
				all = append(all, datapath.Object{Kind: "rule", Name: c.Table + " " + c.Name, Text: text})
				chains = append(chains, chain{Table: c.Table, Name: r.jump})
			}
		}
	}
	seen := map[chain]bool{}
	for ; len(chains) > 0; chains = chains[1:] {
		c := chains[0]
		if seen[c] || !xtables.PerService(c.Name) {
			continue
		}
		seen[c] = true
		for _, text := range state.Chains[c] {
			all = append(all, datapath.Object{Kind: "rule", Name: c.Table + " " + c.Name, Text: text})
			target, _, _ := strings.Cut(parse(text).jump, " ")
			chains = append(chains, chain{Table: c.Table, Name: target})
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

// nodePort reports whether a rule of the shared chain c is for a NodePort.
func (r rule) nodePort(c chain) bool {
	return c.Name == xtables.KubeNodePorts || c.Name == xtables.KubeExternalServices && r.dst == ""
}
