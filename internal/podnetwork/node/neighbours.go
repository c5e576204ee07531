package node

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// maxNeighbours are kept: each is asked for every half minute. It is what the kernel's table holds by default.
const maxNeighbours = 1024

// wantedNeighbours are routers and the other nodes, as far as they are in networks of this node.
//
// The kernel's table of neighbours is small, and the whole machine shares it: a pod that sends to many addresses of the
// nodes' network fills it with entries that nobody answers, and who is not in it then is not found. These have entries
// beyond its limit, which the kernel refreshes by itself.
func wantedNeighbours(table *routingTable, p *plan, self string, peers []Peer) map[hop]bool {
	all := table.routers
	for _, dst := range sortedKeys(p.routes) {
		if r := p.routes[dst]; r.by == WayRoutes || r.by == WayBGP { // tunnels have entries of their own
			all = append(all, r.hops()...)
		}
	}
	for _, peer := range peers {
		for _, addr := range peer.Addrs {
			if peer.Name != self {
				all = append(all, hop{addr, linkTo(addr, table.onLink)})
			}
		}
	}
	wanted := map[hop]bool{}
	for _, h := range all {
		if h.link != 0 && len(wanted) < maxNeighbours {
			wanted[h] = true
		}
	}
	return wanted
}

// syncNeighbours makes ours what is wanted. They have the protocol of our routes; other entries stay, but for those that
// ours take the place of.
func syncNeighbours(wanted map[hop]bool) error {
	all, err := readNeighbours()
	if err != nil {
		return err
	}
	have := map[hop]bool{}
	for _, n := range all {
		if n.isOurs {
			have[n.hop] = true
		}
	}
	var failed error
	for h := range wanted {
		if have[h] {
			continue
		}
		// A link may be down, or be of a kind that has no neighbours: those need no entry.
		if err := changeNeighbour(h, unix.RTM_NEWNEIGH); err != nil && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.EINVAL) {
			failed = errors.Join(failed, fmt.Errorf("keep neighbour %s: %w", h.via, err))
		}
	}
	for h := range have {
		if wanted[h] {
			continue
		}
		if err := changeNeighbour(h, unix.RTM_DELNEIGH); err != nil && !errors.Is(err, unix.ENOENT) {
			failed = errors.Join(failed, fmt.Errorf("remove neighbour %s: %w", h.via, err))
		}
	}
	return failed
}

// changeNeighbour makes an entry, keeping the state that it has, or removes it. Kernels before 5.16 do not know
// NTF_EXT_MANAGED: the entry is beyond the limit there too, and is asked for when it is used.
func changeNeighbour(h hop, kind int) error {
	msg := netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(h.link), Flags: netlink.NTF_EXT_LEARNED}
	if h.via.Is6() {
		msg.Family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(kind, unix.NLM_F_ACK)
	if kind == unix.RTM_NEWNEIGH {
		req.Flags |= unix.NLM_F_CREATE
	}
	req.AddData(&msg)
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, h.via.AsSlice()))
	if kind == unix.RTM_NEWNEIGH {
		req.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, []byte{cni.RouteProtocol}))
		req.AddData(nl.NewRtAttr(netlink.NDA_FLAGS_EXT, nl.Uint32Attr(netlink.NTF_EXT_MANAGED)))
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// A neighbour is an entry of the kernel's.
type neighbour struct {
	hop
	isOurs, permanent bool
}

// readNeighbours returns those of both families.
func readNeighbours() (found []neighbour, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
	req.AddData(&netlink.Ndmsg{})
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil && !errors.Is(err, unix.EINTR) { // the table changed meanwhile: there is a next time
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
		n := neighbour{hop: hop{link: int(nl.NativeEndian().Uint32(m[4:]))}, permanent: nl.NativeEndian().Uint16(m[8:])&netlink.NUD_PERMANENT != 0}
		for _, a := range attrs {
			switch a.Attr.Type {
			case netlink.NDA_DST:
				n.via, _ = netip.AddrFromSlice(a.Value)
			case netlink.NDA_PROTOCOL:
				n.isOurs = len(a.Value) > 0 && a.Value[0] == cni.RouteProtocol
			}
		}
		if n.via.IsValid() {
			found = append(found, n)
		}
	}
	return found, nil
}
