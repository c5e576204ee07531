package layer2

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/arp"
)

// links are the interfaces that this node could announce on.
type links struct {
	known bool
	all   []arp.Interface
	// asked are the sets of interfaces on which this node may announce addresses: each once, the empty one is all that
	// have a network.
	asked    [][]string
	unfit    string              // why the node could announce some of its addresses nowhere
	notified map[netip.Addr]bool // whose Services have had an event
}

// on returns those of the interfaces that an address with these is announced on.
func (l *links) on(names []string) []arp.Interface {
	return slices.DeleteFunc(slices.Clone(l.all), func(i arp.Interface) bool {
		return len(names) > 0 && !slices.Contains(names, i.Name) || len(names) == 0 && !i.Network
	})
}

func carries(i arp.Interface) bool { return i.Connected }

// cutOff reports whether no network of the node has anything at its other end.
func (l *links) cutOff() bool { return l.known && !slices.ContainsFunc(l.on(nil), carries) }

// ask notes on which interfaces the node may announce addresses.
func (l *links) ask(node string, decisions map[netip.Addr]*announce.Decision) {
	seen := map[string]bool{}
	l.asked = nil
	for _, d := range decisions {
		c, ok := d.Candidate(node)
		if key := strings.Join(c.Interfaces, ","); ok && !seen[key] {
			seen[key] = true
			l.asked = append(l.asked, c.Interfaces)
		}
	}
	l.look()
}

// look finds out whether the node could announce all that may be its own: its heartbeats may go by another network than
// that of the addresses.
func (l *links) look() {
	l.unfit = ""
	for _, names := range l.asked {
		if !l.known || slices.ContainsFunc(l.on(names), carries) {
			continue
		}
		why := "no interface of it that has a network is connected"
		if len(names) > 0 {
			why = fmt.Sprintf("none of the interfaces %s, which an L2Advertisement names, is there and connected", strings.Join(names, ", "))
		}
		if l.unfit == "" || why < l.unfit {
			l.unfit = why
		}
	}
}

// nowhere reports whether the node has no interface to announce an address on, and tells the owners of its Services,
// once. One that is only not connected may be later.
func (s *Speaker) nowhere(a netip.Addr, names []string) bool {
	if !s.links.known || len(s.links.on(names)) > 0 {
		delete(s.links.notified, a)
		return !s.links.known
	}
	if s.links.notified[a] {
		return true
	}
	if s.links.notified == nil {
		s.links.notified = map[netip.Addr]bool{}
	}
	s.links.notified[a] = true
	on := "that has a network"
	if len(names) > 0 {
		on = strings.Join(names, " or ")
	}
	for _, name := range s.servicesOf(a) {
		s.cfg.Event(name, api.Problem{Reason: "announceFailed", Message: fmt.Sprintf(
			"%v is not announced: node %s has no interface %s [which nodes have one? name them in nodeSelectors of the L2Advertisement]", a, s.cfg.Node, on)})
	}
	return true
}

// deviced puts the fence around new interfaces.
func (s *Speaker) deviced(ctx context.Context, all []arp.Interface) {
	var names, networks []string
	for _, i := range all {
		if names = append(names, i.Name); i.Network {
			networks = append(networks, i.Name)
		}
	}
	if err := s.fence.Devices(ctx, names); err != nil {
		s.mend(ctx, err)
	}
	for _, name := range arp.Wireless(networks) {
		s.cfg.Log.Warn("an interface is wireless: access points may not pass on what is announced there [announce on wired interfaces: spec.interfaces of the L2Advertisement]", "interface", name)
	}
	s.links.known, s.links.all = true, all
	s.links.look()
	s.announce()
}
