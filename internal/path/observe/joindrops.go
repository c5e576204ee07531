package observe

import (
	"bufio"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/netns"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// joinDrops keeps the drops of the probe's packets in the node's namespace and in the namespaces of its pods.
func (j *joiner) joinDrops() {
	var kept []int
	for i, d := range j.dropped.all {
		if d.reason == "QUEUE_PURGE" || d.reason == "CONSUMED" || d.reason == "SOCKET_CLOSE" { // the end of sockets, not of packets
			continue
		}
		if d.packet.DSCP == j.order.Tag && j.order.Tag != 0 || j.known(d.packet) {
			kept = append(kept, i)
		}
	}
	if len(kept) == 0 {
		return
	}
	peers, err := netns.Peers(j.files)
	if err != nil {
		j.note(err.Error())
	}
	var addresses []uint64
	for _, i := range kept {
		addresses = append(addresses, j.dropped.all[i].where)
	}
	names := symbols(addresses)
	for _, i := range kept {
		d := j.dropped.all[i]
		own := uint64(d.inode) == j.inode
		peer := slices.ContainsFunc(peers, func(p netns.Peer) bool { return p.Inode == uint64(d.inode) })
		if !own && !peer && d.inode != 0 && len(peers) > 0 {
			continue // another node of the same machine, or a namespace of no pod
		}
		packet := d.packet
		if own {
			packet.In = j.link(d.link)
		}
		j.all = append(j.all, trace.Observation{
			Node: j.order.Node, Time: j.dropped.at[i], Source: trace.FromDrop, Reply: j.isReply(packet), Packet: &packet,
			Drop: &trace.Drop{Reason: d.reason, Where: names[d.where], Pod: !own},
		})
	}
}

// known reports whether the packet has the addresses of a packet or a connection of the probe, in any direction.
func (j *joiner) known(p trace.Packet) bool {
	for _, t := range j.tuples() {
		if t.Src == p.Src && t.Dst == p.Dst || t.Src == p.Dst && t.Dst == p.Src {
			return true
		}
	}
	return false
}

// isReply reports whether the packet goes to the client.
func (j *joiner) isReply(p trace.Packet) bool {
	from := func(at netip.AddrPort) bool { return at == j.order.To || slices.Contains(j.order.Endpoints, at) }
	return from(p.Src) && !from(p.Dst)
}

// tuples returns the addresses of the probe's packets and connections on this node.
func (j *joiner) tuples() (all []trace.Tuple) {
	for _, o := range j.all {
		switch {
		case o.Flow != nil:
			all = append(all, o.Flow.Orig, o.Flow.Reply)
		case o.Packet != nil:
			all = append(all, trace.Tuple{Src: o.Packet.Src, Dst: o.Packet.Dst})
		}
	}
	return all
}

// symbols returns the names of the kernel's functions at addresses. Without the right to read them it returns none.
func symbols(addresses []uint64) map[uint64]string {
	names, starts := map[uint64]string{}, map[uint64]uint64{}
	file, err := os.Open("/proc/kallsyms")
	if err != nil {
		return names
	}
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		at, rest, _ := strings.Cut(s.Text(), " ")
		kind, name, _ := strings.Cut(rest, " ")
		start, err := strconv.ParseUint(at, 16, 64)
		if err != nil || start == 0 || !strings.ContainsAny(kind, "tT") {
			continue
		}
		for _, a := range addresses {
			if start <= a && start > starts[a] {
				starts[a], names[a] = start, name
			}
		}
	}
	return names
}
