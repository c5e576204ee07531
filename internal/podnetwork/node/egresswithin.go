package node

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// wayWithin is the way by VXLAN inside of WireGuard. A peer's key stands for its pods' addresses, so packets of pods to
// and from the world go in packets between the first addresses of the nodes' podCIDRs, which are no pod's.
const wayWithin Way = "within"

// within is the wanted state of that tunnel. A nil one ignores what is added.
type within struct {
	tunnel *tunnel
	macs   map[string]mac // of nodes that it can lead to, by name
	// partners are the other ends of pods whose packets it carries: of a pod that leaves by this node its own
	// node, of a pod of this node its gateway.
	partners map[netip.Addr]mac
	answered []netip.Addr                // pods of other nodes whose answers go through it
	answers  map[netip.Prefix]netip.Addr // their podCIDRs, and what leads there
}

// newWithin returns the tunnel to all nodes whose keys are known; nil: there is none.
func (p *plan) newWithin(self string) *within {
	if p.wg == nil || len(p.wg.addrs) == 0 {
		return nil
	}
	w := &within{macs: map[string]mac{}, partners: map[netip.Addr]mac{}, answers: map[netip.Prefix]netip.Addr{}}
	// Without an address of its own rp_filter drops all that comes by the link.
	w.tunnel = &tunnel{mac: tunnelMAC(self), local: underlay(p.wg.addrs, netip.Addr.Is4), addrs: p.wg.addrs, remotes: map[mac]netip.Addr{}, gateways: map[netip.Addr]mac{}}
	if !w.tunnel.local.IsValid() {
		w.tunnel.local = p.wg.addrs[0]
	}
	taken := map[mac]bool{w.tunnel.mac: true}
	for _, name := range slices.Sorted(maps.Keys(p.wg.keys)) {
		m, cidrs := tunnelMAC(name), p.wg.peers[p.wg.keys[name]].allowed
		i := slices.IndexFunc(cidrs, func(c netip.Prefix) bool { return c.Addr().Is4() == w.tunnel.local.Is4() })
		if i < 0 || taken[m] {
			continue
		}
		taken[m], w.macs[name], w.tunnel.remotes[m] = true, m, cidrs[i].Addr()
		for _, cidr := range cidrs {
			w.tunnel.gateways[tunnelGateway(name, cidr)] = m
		}
	}
	return w
}

// reaches reports whether packets for anywhere can go to a node's end.
func (w *within) reaches(via netip.Addr) bool { return w != nil && w.tunnel.gateways[via] != mac{} }

// meet takes a pod whose packets may come from a node, or go there.
func (w *within) meet(node string, pod netip.Addr) {
	if w != nil && w.macs[node] != (mac{}) {
		w.partners[pod] = w.macs[node]
	}
}

// answer takes a pod of another node that leaves by this one, and the route to it: by a key, nothing comes from the world.
func (w *within) answer(node string, pod netip.Addr, to route) {
	if w != nil && w.macs[node] != (mac{}) && to.by == WayWireGuard {
		w.answered = append(w.answered, pod)
		w.answers[to.dst] = to.via
	}
}

// wanted is the tunnel; nil: there is to be none.
func (w *within) wanted() *tunnel {
	if w == nil {
		return nil
	}
	return w.tunnel
}

// addTo adds what says who may send through it.
func (w *within) addTo(all elements) {
	for _, set := range []string{"ends4", "ends6", "partners4", "partners6", "answers4", "answers6"} {
		all[set] = map[string]string{}
	}
	if w == nil {
		return
	}
	padded := func(m mac) string { return string(append(m[:], 0, 0)) } // to four bytes, as parts of keys are
	for m, end := range w.tunnel.remotes {
		all["ends"+familyName(end)][string(end.AsSlice())+padded(m)] = ""
	}
	for pod, m := range w.partners {
		all["partners"+familyName(pod)][padded(m)+string(pod.AsSlice())] = ""
	}
	for _, pod := range w.answered {
		all["answers"+familyName(pod)][string(pod.AsSlice())] = ""
	}
}

// familyName is what the names of sets end with.
func familyName(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// syncAnswers makes the routes of answers, and the ip rule that leads marked packets to them, what is wanted.
func syncAnswers(handle netlinksafe.Handle, w *within, link int) error {
	for _, is4 := range []bool{true, false} {
		wanted := map[netip.Prefix]netip.Addr{}
		if w != nil && link != 0 {
			for dst, via := range w.answers {
				if dst.Addr().Is4() == is4 {
					wanted[dst] = via
				}
			}
		}
		none := len(wanted) == 0
		if err := syncAnswerRoutes(handle, is4, wanted, link); err != nil {
			return fmt.Errorf("set the routes of answers to egress addresses: %w", err)
		}
		rule := markRule(markAnswer, numbers.RouteTableAnswer, is4)
		change := handle.RuleAdd
		if none {
			change = handle.RuleDel
		}
		err := change(rule)
		if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("set the ip rule of answers to egress addresses: %w", err)
		}
	}
	return nil
}

func syncAnswerRoutes(handle netlinksafe.Handle, is4 bool, wanted map[netip.Prefix]netip.Addr, link int) error {
	have, err := handle.RouteListFiltered(familyOf(is4), &netlink.Route{Table: numbers.RouteTableAnswer, Protocol: cni.RouteProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return err
	}
	for _, r := range have {
		via, _ := netip.AddrFromSlice(r.Gw)
		dst := prefixOf(r.Dst, familyOf(is4))
		if wanted[dst] == via.Unmap() && via.IsValid() && r.LinkIndex == link {
			delete(wanted, dst)
		} else if wanted[dst].IsValid() {
			continue // replaced below
		} else if err := handle.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	for dst, via := range wanted {
		r := kernelRoute(route{dst: dst, via: via, link: link, by: WayVXLAN})
		r.Table = numbers.RouteTableAnswer
		if err := handle.RouteReplace(r); err != nil {
			return err
		}
	}
	return nil
}
