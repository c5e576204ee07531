package iptables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
	"github.com/fairway-net/fairway/internal/service"
)

// A Service of very many ports at one address has chains of its own for them: of what other Services' packets
// pass, and of what a change reads, it is one rule. So it is in both tables, in each shared chain.
//
//	KUBE-SERVICES ─ the address ─→ KUBE-SVC-address ─ 256 ports ─→ KUBE-SVC-ports ─ the port ─→ KUBE-SVC-…
//
// A chain for ports holds the rules that the shared chain has of other Services. A change writes one of them, as
// which ports are in it is fixed.
const portsOfChain = 256

// maxPorts is how many ports of an address a Service has, at most, whose rules are in the shared chains, as all
// of kube-proxy's are. It is a variable for tests.
var maxPorts = 64

// wide are the addresses at which a Service has more ports than maxPorts.
type wide map[netip.Addr]bool

// wideOf finds those of a Service's frontends.
func wideOf(all []*service.Frontend) wide {
	if len(all) <= maxPorts {
		return nil
	}
	ports, w := map[netip.Addr]int{}, wide{}
	for _, f := range all {
		if ports[f.Addr.Addr()]++; ports[f.Addr.Addr()] > maxPorts {
			w[f.Addr.Addr()] = true
		}
	}
	return w
}

// wideOfGroups are those of each Service that has any.
func wideOfGroups(groups map[group][]*service.Frontend) map[api.Name]wide {
	ofService := map[api.Name][]*service.Frontend{}
	for g, fronts := range groups {
		ofService[g.name.Name] = append(ofService[g.name.Name], fronts...)
	}
	all := map[api.Name]wide{}
	for name, fronts := range ofService {
		if w := wideOf(fronts); len(w) > 0 {
			all[name] = w
		}
	}
	return all
}

// A lead is a rule that leads to a chain for ports. Both are there as long as there is a rule behind them.
type lead struct {
	in   chain
	rule string
	to   chain
}

// entry adds a rule of a frontend to a shared chain, or to the chain for its port.
func (s *builder) entry(c chain, f *service.Frontend, rule string) {
	if s.wide[f.Addr.Addr()] {
		c = s.portsChain(c, f)
	}
	s.entries[c] = append(s.entries[c], rule)
}

// portsChain is the chain for a frontend's port that a shared chain leads to. Its name begins as kube-proxy's
// do, which so removes it from table nat when it takes over.
func (s *builder) portsChain(shared chain, f *service.Frontend) chain {
	addr, own := f.Addr.Addr(), f.Service.Name.String()
	first, last := portsWith(f.Addr.Port())
	name := func(more ...string) chain {
		return chain{shared.table, svc + xtables.Hash(append([]string{own, shared.name, addr.String()}, more...)...)}
	}
	all, some := name(), name(lower(f.Proto), strconv.Itoa(int(first)))
	toAll := rule{comment: own, jump: all.name}
	if !f.NodePort() {
		toAll.dst = hostCIDR(addr)
	}
	toSome := rule{proto: f.Proto, port: first, lastPort: last, comment: own, jump: some.name}
	s.leads[lead{shared, toAll.String(), all}]++
	s.leads[lead{all, toSome.String(), some}]++
	return some
}

// portsWith are the first and the last port of the chain that has a port. 0 is none of them.
func portsWith(port uint16) (first, last uint16) {
	n := (port - 1) / portsOfChain
	return n*portsOfChain + 1, uint16(min(int(n+1)*portsOfChain, 0xffff))
}

// toPorts reports whether a rule leads to a chain for ports.
func (r rule) toPorts() bool { return xtables.PerService(r.jump) && (r.port == 0 || r.lastPort != 0) }

// byPort yields the rules of a shared chain that are about one port, those in chains for ports included.
func (h *familyState) byPort(c chain, yield func(text string, r rule) error) error {
	for _, text := range h.chains[c] {
		r := parse(text)
		var err error
		switch {
		case r.toPorts():
			err = h.byPort(chain{c.table, r.jump}, yield)
		case r.proto != 0 && r.port != 0: // others lead to the NodePorts
			err = yield(text, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leadsAfter are the rules to chains for ports that are new and those that are gone, when their counts change.
func leadsAfter(counts, change map[lead]int) (added, removed []lead) {
	for l, n := range change {
		switch had, has := counts[l] > 0, counts[l]+n > 0; {
		case has && !had:
			added = append(added, l)
		case had && !has:
			removed = append(removed, l)
		}
	}
	order := func(a, b lead) int { return compareChains(a.to, b.to) }
	slices.SortFunc(added, order)
	slices.SortFunc(removed, order)
	return added, removed
}

// changeLeads makes the chains for ports that are new and removes those that are gone, which it returns.
func (s *script) changeLeads(counts, change map[lead]int) (gone map[chain]bool) {
	added, removed := leadsAfter(counts, change)
	gone = map[chain]bool{}
	for _, l := range removed {
		gone[l.to] = true
	}
	for _, l := range added {
		in := s.adds(l.to.table)
		in.replaceChain(l.to.name, nil)
		in.insert(l.in.name, []string{l.rule})
	}
	for _, l := range removed {
		in := s.removes(l.to.table)
		if !gone[l.in] {
			in.delete(l.in.name, []string{l.rule})
		}
		in.deleteChain(l.to.name)
	}
	return gone
}
