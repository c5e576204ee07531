package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A reader translates the rules of one family back.
type reader struct {
	kernel *familyState
	is4    bool
	fronts map[service.Key]*service.Frontend
}

// table translates what both families hold.
func table(all map[bool]*familyState) (*service.Table, error) {
	var settings service.Settings
	var fronts []*service.Frontend
	for _, is4 := range []bool{true, false} {
		h := all[is4]
		if h == nil || h.chains[chain{nat, recordings}] == nil {
			continue // not ours
		}
		if err := settingsOf(h, &settings); err != nil {
			return nil, err
		}
		r := &reader{kernel: h, is4: is4, fronts: map[service.Key]*service.Frontend{}}
		if err := r.read(); err != nil {
			return nil, err
		}
		for _, f := range r.fronts {
			fronts = append(fronts, f)
		}
	}
	return service.NewTable(settings, fronts), nil
}

func settingsOf(h *familyState, s *service.Settings) error {
	for _, text := range h.chains[chain{nat, recordings}] {
		what, value, _ := strings.Cut(parse(text).comment, " ")
		if what == "interface" {
			if !slices.Contains(s.PodInterfaces, value) {
				s.PodInterfaces = append(s.PodInterfaces, value)
			}
			continue
		}
		into := map[string]*[]netip.Prefix{"pods": &s.Pods, "nodeports": &s.NodePorts, "services": &s.ServiceCIDRs}[what]
		if into == nil {
			continue
		}
		p, err := netip.ParsePrefix(value)
		if err != nil {
			return fmt.Errorf("chain %s: %w", recordings, err)
		}
		*into = append(*into, p)
	}
	return nil
}

// read visits the chains that packets come to first.
func (r *reader) read() error {
	for _, c := range []chain{{nat, services}, {nat, nodeports}, {filter, services}, {filter, externals}, {filter, nodeports}} {
		for _, text := range r.kernel.chains[c] {
			one := parse(text)
			if one.proto == 0 || one.port == 0 || strings.Contains(one.comment, notAccepted) {
				continue // it leads to the NodePorts, or drops clients that are not in the frontend's sources
			}
			visit := r.forward
			if c.table == filter {
				visit = func(one rule) error { return r.refusal(one, c.name) }
			}
			if err := visit(one); err != nil {
				return fmt.Errorf("rule %q: %w", text, err)
			}
		}
	}
	for k, f := range r.fronts {
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

// frontend returns the frontend that a rule is about.
func (r *reader) frontend(one rule) (*service.Frontend, error) {
	addr, ok := one.to()
	switch {
	case !ok && one.dst != "":
		return nil, fmt.Errorf("destination %q", one.dst)
	case !ok && r.is4:
		addr = netip.IPv4Unspecified()
	case !ok:
		addr = netip.IPv6Unspecified()
	}
	k := service.Key{Addr: netip.AddrPortFrom(addr, one.port), Proto: one.proto}
	f := r.fronts[k]
	isLB := strings.Contains(one.comment, loadBalancerIP) || strings.HasSuffix(one.comment, loadBalancerWord)
	if f != nil {
		f.LoadBalancer = f.LoadBalancer || isLB
		return f, nil
	}
	words := strings.Fields(one.comment)
	if len(words) == 0 {
		return nil, fmt.Errorf("no comment that names a Service")
	}
	name, err := api.ParsePortName(words[0])
	if err != nil {
		return nil, err
	}
	f = &service.Frontend{Addr: k.Addr, Proto: k.Proto, Service: name, LoadBalancer: isLB}
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
	r.fronts[k] = f
	return f, nil
}

// forward reads a rule that leads to a Service's chain.
func (r *reader) forward(one rule) error {
	f, err := r.frontend(one)
	if err != nil {
		return err
	}
	f.ClusterIP = strings.Contains(one.comment, " cluster IP")
	to := one.jump
	if strings.HasPrefix(to, fw) {
		for _, text := range r.kernel.chains[chain{nat, to}] {
			from := parse(text)
			if from.src == "" {
				continue
			}
			p, err := netip.ParsePrefix(from.src)
			if err != nil {
				return err
			}
			f.Sources, one.jump = append(f.Sources, p), from.jump
		}
		slices.SortFunc(f.Sources, netip.Prefix.Compare)
	}
	switch to = one.jump; {
	case strings.HasPrefix(to, ext):
		return r.external(f, to)
	case strings.HasPrefix(to, svc), strings.HasPrefix(to, svl):
		route, err := r.route(to)
		if err != nil {
			return err
		}
		for _, text := range r.kernel.chains[chain{nat, to}] {
			m := parse(text)
			if m.dst != one.dst || m.port != one.port || !marks(m.jump) {
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
func marks(name string) bool { return name == markMasq || name == markOffCluster }

// external reads a chain KUBE-EXT-.
func (r *reader) external(f *service.Frontend, name string) error {
	var inside, outside *service.Route
	offCluster, all, local := false, false, service.MasqueradeHairpin
	for _, text := range r.kernel.chains[chain{nat, name}] {
		one := parse(text)
		switch marks := marks(one.jump); {
		case marks && strings.HasPrefix(one.comment, "masquerade LOCAL"):
			if local = service.MasqueradeOffCluster; strings.HasSuffix(one.comment, allMasqueraded) {
				local = service.MasqueradeAll
			}
		case marks && strings.HasPrefix(one.comment, "masquerade traffic"):
			offCluster = strings.HasSuffix(one.comment, offClusterMasqueraded)
			all = !offCluster
		case marks, one.jump == "RETURN":
		case one.matches == fromLocal, one.comment == "":
			route, err := r.route(one.jump)
			if err != nil {
				return err
			}
			if one.comment != "" {
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
	// Without rules for internal clients the route is that of all clients; else the missing one is a refusal.
	differs := slices.ContainsFunc(r.kernel.chains[chain{nat, name}], func(text string) bool { return parse(text).matches == fromLocal })
	if !differs {
		inside = outside
	}
	f.Internal, f.External = inside, outside
	return nil
}

// route reads a list of endpoints.
func (r *reader) route(list string) (*service.Route, error) {
	route := &service.Route{Local: strings.HasPrefix(list, svl)}
	seen := map[string]bool{}
	for _, text := range r.kernel.chains[chain{nat, list}] {
		one := parse(text)
		if seen[one.jump] || !strings.HasPrefix(one.jump, sep) {
			continue
		}
		seen[one.jump] = true
		e, err := r.endpoint(one)
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

// endpoint reads the endpoint that a rule of a list leads to. The address is what the kernel really
// uses; the rest is in the comment.
func (r *reader) endpoint(one rule) (e service.Endpoint, err error) {
	for _, text := range r.kernel.chains[chain{nat, one.jump}] {
		if to, ok := strings.CutPrefix(parse(text).jump, "DNAT --to-destination "); ok {
			if e.Addr, err = netip.ParseAddrPort(to); err != nil {
				return e, fmt.Errorf("%s: %w", one.jump, err)
			}
		}
	}
	if !e.Addr.IsValid() {
		return e, fmt.Errorf("%s leads nowhere", one.jump)
	}
	_, text, _ := strings.Cut(one.comment, " -> ")
	text, weight, weighted := strings.Cut(text, "*")
	e.Local = strings.HasSuffix(text, "(local)")
	if weighted {
		n, err := strconv.ParseUint(weight, 10, 16)
		if err != nil {
			return e, fmt.Errorf("weight in %q: %w", one.comment, err)
		}
		e.Weight = uint16(n)
	}
	return e, nil
}

// refusal reads a rule of the table filter.
func (r *reader) refusal(one rule, in string) error {
	f, err := r.frontend(one)
	if err != nil {
		return err
	}
	f.ClusterIP = f.ClusterIP || in == services
	route := &service.Route{Action: service.Drop}
	if strings.HasPrefix(one.jump, "REJECT") {
		route.Action = service.Reject
	}
	switch {
	case one.matches == fromLocal:
		f.Internal = route
		return nil
	case one.in != "", one.src != "" && !covers(f.Sources, one.src):
		return nil // of pods, which are treated as the node is
	}
	if f.Internal == nil {
		f.Internal = route
	}
	if f.External == nil {
		f.External = route
	}
	return nil
}

// covers reports whether a source is one of those that may connect.
func covers(all []netip.Prefix, src string) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.String() == src })
}
