package node

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// maxNeighbours limits the kept entries, because the kernel asks for each of them every half minute. It is the default
// size of the kernel's table.
const maxNeighbours = 1024

// wantedNeighbours returns the routers and the other nodes that are in networks of this node.
//
// The kernel's table of neighbours is small, and the whole machine shares it. A pod that sends to many addresses of the
// nodes' network fills the table with entries that never get an answer. Then other neighbours are not found. Kept
// entries do not count for the table's limit, and the kernel refreshes them.
func wantedNeighbours(table *routingTable, p *plan.Plan, self string, peers []plan.Peer) map[plan.Hop]bool {
	all := table.routers
	for _, dst := range sortedKeys(p.Routes) {
		if r := p.Routes[dst]; r.By == plan.WayRoutes || r.By == plan.WayBGP { // tunnels keep their own entries
			all = append(all, r.Hops()...)
		}
	}
	for _, peer := range peers {
		for _, addr := range peer.Addrs {
			if peer.Name != self {
				all = append(all, plan.Hop{Via: addr, Link: plan.LinkTo(addr, table.onLink)})
			}
		}
	}
	wanted := map[plan.Hop]bool{}
	for _, h := range all {
		if h.Link != 0 && len(wanted) < maxNeighbours {
			wanted[h] = true
		}
	}
	return wanted
}

// syncNeighbours makes the kernel keep the wanted entries. They have the protocol of our routes. Other entries stay,
// unless a wanted entry takes their place.
func syncNeighbours(wanted map[plan.Hop]bool) error {
	all, err := readNeighbours()
	if err != nil {
		return err
	}
	have := map[plan.Hop]bool{}
	for _, n := range all {
		if n.isOurs {
			have[n.Hop] = true
		}
	}
	var failed error
	for h := range wanted {
		if have[h] {
			continue
		}
		// A link may be down, or may have no neighbours. Then no entry is needed.
		if err := changeNeighbour(h, unix.RTM_NEWNEIGH); err != nil && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.EINVAL) {
			failed = errors.Join(failed, fmt.Errorf("keep neighbour %s: %w", h.Via, err))
		}
	}
	for h := range have {
		if wanted[h] {
			continue
		}
		if err := changeNeighbour(h, unix.RTM_DELNEIGH); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = errors.Join(failed, fmt.Errorf("remove neighbour %s: %w", h.Via, err))
		}
	}
	return failed
}

// changeNeighbour adds an entry, which keeps its state, or removes it. Kernels before 5.16 ignore NTF_EXT_MANAGED:
// there the entry is also beyond the limit, but the kernel asks only when the entry is used.
func changeNeighbour(h plan.Hop, kind int) error {
	msg := netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(h.Link), Flags: netlink.NTF_EXT_LEARNED}
	if h.Via.Is6() {
		msg.Family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(kind, unix.NLM_F_ACK)
	if kind == unix.RTM_NEWNEIGH {
		req.Flags |= unix.NLM_F_CREATE
	}
	req.AddData(&msg)
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, h.Via.AsSlice()))
	if kind == unix.RTM_NEWNEIGH {
		req.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, []byte{cni.RouteProtocol}))
		req.AddData(nl.NewRtAttr(netlink.NDA_FLAGS_EXT, nl.Uint32Attr(netlink.NTF_EXT_MANAGED)))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// A neighbour is an entry of the kernel's table.
type neighbour struct {
	plan.Hop
	isOurs, permanent bool
}

// readNeighbours returns the entries of both families.
func readNeighbours() (found []neighbour, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	req.AddData(&netlink.Ndmsg{})
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil && !errors.Is(err, unix.EINTR) { // the table changed meanwhile; the next resync reads it again
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, m := range messages {
		var head netlink.Ndmsg
		if len(m) < head.Len() {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[head.Len():])
		if err != nil {
			return nil, fmt.Errorf("read neighbours: %w", err)
		}
		n := neighbour{Hop: plan.Hop{Link: int(nl.NativeEndian().Uint32(m[4:]))}, permanent: nl.NativeEndian().Uint16(m[8:])&netlink.NUD_PERMANENT != 0}
		for _, a := range attrs {
			switch a.Attr.Type {
			case netlink.NDA_DST:
				n.Via, _ = netip.AddrFromSlice(a.Value)
			case netlink.NDA_PROTOCOL:
				n.isOurs = len(a.Value) > 0 && a.Value[0] == cni.RouteProtocol
			}
		}
		if n.Via.IsValid() {
			found = append(found, n)
		}
	}
	return found, nil
}
