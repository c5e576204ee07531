package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables/read"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// Adopt implements datapath.Datapath.
func (d *Datapath) Adopt(ctx context.Context) (datapath.Adopted, error) {
	out, err := d.adopt(ctx)
	if err != nil {
		return datapath.Adopted{Table: &service.Table{}, Found: out.Found}, fmt.Errorf("adopt iptables: %w", err)
	}
	return out, nil
}

// adopt reads everything. It keeps the rules for the first Sync, if the kernel can tell by then whether another program
// has written.
func (d *Datapath) adopt(ctx context.Context) (out datapath.Adopted, err error) {
	watched := false
	if d.table == nil {
		d.helper.watch.Reset()
		watched = d.helper.watch.Begin(ctx) == nil
	}
	s := read.NewSnapshot(&d.reader)
	if err := d.chooseVariant(ctx, s); err != nil {
		return out, err
	}
	states, err := s.All(ctx, d.variant)
	if err != nil {
		return out, err
	}
	if out.Found, err = s.Found(ctx); err != nil {
		return out, err
	}
	if out.Table, err = tableOf(states); err != nil {
		return out, err
	}
	if d.table == nil && watched {
		d.adopted = s
	}
	return out, nil
}

// A translator makes frontends of the rules of one family.
type translator struct {
	kernel *read.State
	is4    bool
	fronts map[service.Key]*service.Frontend
}

// tableOf makes a table of the rules of both families. It is empty if Fairway did not write them.
func tableOf(states map[bool]*read.State) (*service.Table, error) {
	var settings service.Settings
	var fronts []*service.Frontend
	for _, is4 := range []bool{true, false} {
		state := states[is4]
		if state == nil || !state.Fairway() {
			continue
		}
		if err := settingsOf(state, &settings); err != nil {
			return nil, err
		}
		t := &translator{kernel: state, is4: is4, fronts: map[service.Key]*service.Frontend{}}
		if err := t.translate(); err != nil {
			return nil, err
		}
		for _, f := range t.fronts {
			fronts = append(fronts, f)
		}
	}
	return service.NewTable(settings, fronts), nil
}

// settingsOf adds the settings in the comments of the chain FAIRWAY.
func settingsOf(state *read.State, s *service.Settings) error {
	for _, text := range state.Chains[natChain(xtables.FairwaySettings)] {
		what, value, _ := strings.Cut(parse(text).comment, " ")
		if what == "interface" {
			if !slices.Contains(s.PodInterfaces, value) {
				s.PodInterfaces = append(s.PodInterfaces, value)
			}
			continue
		}
		dst := map[string]*[]netip.Prefix{"pods": &s.Pods, "nodeports": &s.NodePorts, "services": &s.ServiceCIDRs}[what]
		if dst == nil {
			continue
		}
		p, err := netip.ParsePrefix(value)
		if err != nil {
			return fmt.Errorf("chain %s: %w", xtables.FairwaySettings, err)
		}
		*dst = append(*dst, p)
	}
	return nil
}

// translate visits the shared chains, to which packets come first.
func (t *translator) translate() error {
	for _, c := range []chain{
		natChain(xtables.KubeServices), natChain(xtables.KubeNodePorts),
		filterChain(xtables.KubeServices), filterChain(xtables.KubeExternalServices), filterChain(xtables.KubeNodePorts),
	} {
		for _, text := range t.kernel.Chains[c] {
			r := parse(text)
			if r.proto == 0 || r.port == 0 || strings.Contains(r.comment, notAccepted) {
				continue // it leads to the NodePorts, or drops clients outside the frontend's source ranges
			}
			visit := t.forward
			if c.Table == filter {
				visit = func(r rule) error { return t.refusal(r, c.Name) }
			}
			if err := visit(r); err != nil {
				return fmt.Errorf("rule %q: %w", text, err)
			}
		}
	}
	for k, f := range t.fronts {
		if f.Internal == nil || f.External == nil {
			return fmt.Errorf("%v has no route for some clients", k)
		}
		if f.Internal.Equal(f.External) {
			f.External = f.Internal
		}
	}
	return nil
}

const notAccepted = " traffic not accepted by "

// frontend returns the frontend of a rule of a shared chain, and adds it if it is new. The rule's comment begins with
// the Service port, and extras has added the affinity and the algorithm.
func (t *translator) frontend(r rule) (*service.Frontend, error) {
	addr, ok := r.destination()
	switch {
	case !ok && r.dst != "":
		return nil, fmt.Errorf("destination %q", r.dst)
	case !ok && t.is4:
		addr = netip.IPv4Unspecified()
	case !ok:
		addr = netip.IPv6Unspecified()
	}
	k := service.Key{Addr: netip.AddrPortFrom(addr, r.port), Proto: r.proto}
	f := t.fronts[k]
	isLB := strings.Contains(r.comment, loadBalancerIP) || strings.HasSuffix(r.comment, loadBalancerWord)
	if f != nil {
		f.LoadBalancer = f.LoadBalancer || isLB
		return f, nil
	}
	words := strings.Fields(r.comment)
	if len(words) == 0 {
		return nil, fmt.Errorf("no comment that names a Service")
	}
	name, err := api.ParsePortName(words[0])
	if err != nil {
		return nil, err
	}
	f = &service.Frontend{Addr: k.Addr, Proto: k.Proto, Service: name, LoadBalancer: isLB, OnNode: strings.Contains(r.comment, onNodeWord)}
	for i, w := range words {
		switch {
		case w == "affinity" && i+1 < len(words):
			f.Affinity, err = time.ParseDuration(words[i+1])
		case w == "balance" && i+1 < len(words):
			f.Balance, err = service.ParseAlgorithm(words[i+1])
		}
		if err != nil {
			return nil, err
		}
	}
	t.fronts[k] = f
	return f, nil
}

// forward reads a rule that leads to a Service's chain. cluster, external and frontend write the comments.
func (t *translator) forward(r rule) error {
	f, err := t.frontend(r)
	if err != nil {
		return err
	}
	f.ClusterIP = strings.Contains(r.comment, " cluster IP")
	to := r.jump
	if strings.HasPrefix(to, xtables.KubeFW) {
		for _, text := range t.kernel.Chains[natChain(to)] {
			from := parse(text)
			if from.src == "" {
				continue
			}
			p, err := netip.ParsePrefix(from.src)
			if err != nil {
				return err
			}
			f.Sources, r.jump = append(f.Sources, p), from.jump
		}
		slices.SortFunc(f.Sources, netip.Prefix.Compare)
	}
	switch to = r.jump; {
	case strings.HasPrefix(to, xtables.KubeEXT):
		return t.external(f, to)
	case strings.HasPrefix(to, xtables.KubeSVC), strings.HasPrefix(to, xtables.KubeSVL):
		route, err := t.route(to)
		if err != nil {
			return err
		}
		for _, text := range t.kernel.Chains[natChain(to)] {
			m := parse(text)
			if m.dst != r.dst || m.port != r.port || !marks(m.jump) {
				continue
			}
			if route.Masquerade = service.MasqueradeOffCluster; strings.HasSuffix(m.comment, allMasqueraded) {
				route.Masquerade = service.MasqueradeAll
			}
		}
		f.Internal, f.External = route, route
	}
	return nil
}

// marks reports whether a chain marks packets for masquerade.
func marks(name string) bool { return name == xtables.KubeMarkMasq || name == read.OffCluster }

// external reads a chain KUBE-EXT-. The comments that builder.external and builder.internalRules write tell the rules
// apart.
func (t *translator) external(f *service.Frontend, name string) error {
	var inside, outside *service.Route
	offCluster, all, local := false, false, service.MasqueradeHairpin
	for _, text := range t.kernel.Chains[natChain(name)] {
		r := parse(text)
		switch marks := marks(r.jump); {
		case marks && strings.HasPrefix(r.comment, "masquerade LOCAL"):
			if local = service.MasqueradeOffCluster; strings.HasSuffix(r.comment, allMasqueraded) {
				local = service.MasqueradeAll
			}
		case marks && strings.HasPrefix(r.comment, "masquerade traffic"):
			offCluster = strings.HasSuffix(r.comment, offClusterMasqueraded)
			all = !offCluster
		case marks, r.jump == "RETURN":
		case r.matches == fromLocal, r.comment == "":
			route, err := t.route(r.jump)
			if err != nil {
				return err
			}
			if r.comment != "" {
				inside = route
				continue
			}
			outside = route
		}
	}
	if inside != nil {
		inside.Masquerade = local
	}
	if outside != nil {
		switch {
		case offCluster:
			outside.Masquerade = service.MasqueradeOffCluster
		case all:
			outside.Masquerade = service.MasqueradeAll
		}
	}
	// Without rules for internal clients, all clients have one route. Otherwise a missing route is a refusal.
	differs := slices.ContainsFunc(t.kernel.Chains[natChain(name)], func(text string) bool { return parse(text).matches == fromLocal })
	if !differs {
		inside = outside
	}
	f.Internal, f.External = inside, outside
	return nil
}

// route reads a chain KUBE-SVC- or KUBE-SVL-, which leads to endpoints.
func (t *translator) route(list string) (*service.Route, error) {
	route := &service.Route{Local: strings.HasPrefix(list, xtables.KubeSVL)}
	seen := map[string]bool{}
	for _, text := range t.kernel.Chains[natChain(list)] {
		r := parse(text)
		if seen[r.jump] || !strings.HasPrefix(r.jump, xtables.KubeSEP) {
			continue
		}
		seen[r.jump] = true
		e, err := t.endpoint(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", list, err)
		}
		route.Endpoints = append(route.Endpoints, e)
	}
	if len(route.Endpoints) == 0 {
		return nil, fmt.Errorf("chain %s leads to no endpoint", list)
	}
	slices.SortFunc(route.Endpoints, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return route, nil
}

// endpoint reads the endpoint to which a rule of KUBE-SVC- or KUBE-SVL- leads. The address is in the DNAT rule of the
// endpoint's chain. Whether the endpoint is local, and its weight, are in the comment that choose writes.
func (t *translator) endpoint(r rule) (e service.Endpoint, err error) {
	for _, text := range t.kernel.Chains[natChain(r.jump)] {
		if to, ok := strings.CutPrefix(parse(text).jump, "DNAT --to-destination "); ok {
			if e.Addr, err = netip.ParseAddrPort(to); err != nil {
				return e, fmt.Errorf("%s: %w", r.jump, err)
			}
		}
	}
	if !e.Addr.IsValid() {
		return e, fmt.Errorf("%s leads nowhere", r.jump)
	}
	_, text, _ := strings.Cut(r.comment, " -> ")
	text, weight, weighted := strings.Cut(text, "*")
	e.Local = strings.HasSuffix(text, "(local)")
	if weighted {
		n, err := strconv.ParseUint(weight, 10, 16)
		if err != nil {
			return e, fmt.Errorf("weight in %q: %w", r.comment, err)
		}
		e.Weight = uint16(n)
	}
	return e, nil
}

// refusal reads a rule of the chain in, in table filter.
func (t *translator) refusal(r rule, in string) error {
	f, err := t.frontend(r)
	if err != nil {
		return err
	}
	f.ClusterIP = f.ClusterIP || in == xtables.KubeServices
	route := &service.Route{Action: service.Drop}
	if strings.HasPrefix(r.jump, "REJECT") {
		route.Action = service.Reject
	}
	switch {
	case r.matches == fromLocal:
		f.Internal = route
		return nil
	case r.in != "", r.src != "" && !covers(f.Sources, r.src):
		return nil // the rule is for pods, which are treated like the node
	}
	if f.Internal == nil {
		f.Internal = route
	}
	if f.External == nil {
		f.External = route
	}
	return nil
}

// covers reports whether all contains the prefix src.
func covers(all []netip.Prefix, src string) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.String() == src })
}
