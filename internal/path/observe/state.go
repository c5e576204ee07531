package observe

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netns"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// maxAddresses bounds the addresses whose routes and endpoints whose sockets are read.
const maxAddresses = 8

// readState adds what the node has for the probe: endpoints, routes, sysctls, programs.
func (j *joiner) readState() {
	s := &trace.State{Sysctls: map[string]string{}}
	for _, p := range j.pods {
		s.Endpoints = append(s.Endpoints, p.state(j.ctx, j.order.Proto))
	}
	s.Routes = j.routes()
	links := j.usedLinks()
	for _, r := range s.Routes { // no packet came, so look where it should have come
		if len(j.seen) == 0 && r.Link != "" && !slices.Contains(links, r.Link) {
			links = append(links, r.Link)
		}
	}
	for _, name := range sysctlNames(j.order.To.Addr().Is4(), links) {
		if b, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); err == nil {
			s.Sysctls[name] = strings.TrimSpace(string(b))
		}
	}
	for _, name := range links {
		s.Programs = append(s.Programs, programs(name)...)
	}
	own, err := netns.Addrs()
	if err != nil {
		j.note(err.Error())
	}
	for _, p := range own {
		if a := p.Addr(); !a.IsLoopback() && !a.IsLinkLocalUnicast() && a.Is4() == j.order.To.Addr().Is4() && len(s.Addresses) < 4*maxAddresses {
			s.Addresses = append(s.Addresses, a)
		}
	}
	j.all = append(j.all, trace.Observation{Node: j.order.Node, Time: now(), Source: trace.FromState, State: s})
}

// usedLinks returns the interfaces of the probe's packets.
func (j *joiner) usedLinks() (names []string) {
	for _, o := range j.all {
		if o.Packet == nil {
			continue
		}
		for _, name := range []string{o.Packet.In, o.Packet.Out} {
			if name != "" && !slices.Contains(names, name) && len(names) < maxAddresses {
				names = append(names, name)
			}
		}
	}
	return names
}

// sysctlNames returns the parameters that decide about packets on interfaces.
func sysctlNames(is4 bool, links []string) []string {
	names := []string{"net.netfilter.nf_conntrack_count", "net.netfilter.nf_conntrack_max"}
	if !is4 {
		return append(names, "net.ipv6.conf.all.forwarding")
	}
	names = append(names, "net.ipv4.ip_forward", "net.ipv4.conf.all.rp_filter")
	for _, l := range links {
		if !strings.ContainsAny(l, "./") { // a dot in a name separates parameters
			names = append(names, "net.ipv4.conf."+l+".rp_filter", "net.ipv4.conf."+l+".forwarding")
		}
	}
	return names
}

// routes returns the node's decisions for the addresses that the probe had here, and for its answer.
func (j *joiner) routes() (all []trace.Route) {
	add := func(r trace.Route, ok bool) {
		if ok && len(all) < maxAddresses && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	for _, o := range j.all {
		if o.Packet == nil || o.Rule == nil {
			continue
		}
		p := o.Packet
		switch o.Rule.Hook {
		case "forward", "postrouting", "output":
			add(routeTo(p.Dst.Addr(), netip.Addr{}, ""))
		case "prerouting":
			add(routeTo(p.Src.Addr(), netip.Addr{}, ""))
			if p.In != "" && !o.Reply && p.Dst != j.order.To { // it was not translated, so the kernel decided about these addresses
				add(routeTo(p.Dst.Addr(), p.Src.Addr(), p.In))
			}
		}
	}
	for _, o := range j.all {
		if o.Flow != nil {
			add(routeTo(o.Flow.Reply.Src.Addr(), netip.Addr{}, ""))
			if in := j.cameBy(o.Flow.Orig.Src); in != "" {
				add(routeTo(o.Flow.Reply.Src.Addr(), o.Flow.Orig.Src.Addr(), in))
			}
		}
	}
	isEndpoint := func(r trace.Route) bool {
		return slices.ContainsFunc(j.order.Endpoints, func(e netip.AddrPort) bool { return e.Addr() == r.To })
	}
	if !slices.ContainsFunc(all, isEndpoint) { // no packet came so far
		for _, e := range append(j.order.Endpoints, j.order.To) {
			add(routeTo(e.Addr(), netip.Addr{}, ""))
		}
	}
	return all
}

// cameBy returns the interface by which a source's packet came.
func (j *joiner) cameBy(src netip.AddrPort) string {
	for _, o := range j.all {
		if o.Packet != nil && o.Packet.Src == src && !o.Reply && o.Packet.In != "" {
			return o.Packet.In
		}
	}
	return ""
}

// routeTo asks the kernel for the route to an address; with in, for a packet that came by this interface from an address.
func routeTo(to, from netip.Addr, in string) (r trace.Route, ok bool) {
	r = trace.Route{To: to, From: from, In: in}
	options := &netlink.RouteGetOptions{FIBMatch: in == ""}
	if in != "" {
		options.Iif, options.SrcAddr = in, from.AsSlice()
	}
	found, err := netlink.RouteGetWithOptions(to.AsSlice(), options)
	switch {
	case in != "" && (errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL)): // EXDEV before Linux 6.15
		r.Kind = "martian"
	case errors.Is(err, unix.EACCES):
		r.Kind = "prohibit"
	case errors.Is(err, unix.EINVAL):
		r.Kind = "blackhole"
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		r.Kind = "none"
	case err != nil || len(found) == 0:
		return r, false
	default:
		fill(&r, found[0])
	}
	return r, true
}

// fill copies a route of the kernel, and looks up its link and neighbour.
func fill(r *trace.Route, found netlink.Route) {
	r.Kind = map[int]string{
		unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable",
		unix.RTN_PROHIBIT: "prohibit",
	}[found.Type]
	r.Protocol = int(found.Protocol)
	if r.Prefix = "default"; found.Dst != nil && !strings.HasSuffix(found.Dst.String(), "/0") {
		r.Prefix = found.Dst.String()
	}
	via, _ := netip.AddrFromSlice(found.Gw)
	r.Via = via.Unmap()
	l, err := netlink.LinkByIndex(found.LinkIndex)
	if err != nil {
		return
	}
	a := l.Attrs()
	r.Link, r.MTU, r.Up = a.Name, a.MTU, a.OperState != netlink.OperDown && a.OperState != netlink.OperLowerLayerDown && a.Flags&1 != 0
	next := r.To
	if r.Via.IsValid() {
		next = r.Via
	}
	if r.Kind == "unicast" && a.Name != "lo" {
		r.Neighbour = neighbour(found.LinkIndex, next)
	}
}

// neighbour returns the state of a neighbour; "none" if the kernel does not know it.
func neighbour(index int, addr netip.Addr) string {
	family := unix.AF_INET6
	if addr.Is4() {
		family = unix.AF_INET
	}
	all, err := netlink.NeighList(index, family)
	if err != nil {
		return ""
	}
	for _, n := range all {
		if a, _ := netip.AddrFromSlice(n.IP); a.Unmap() == addr {
			return map[int]string{
				netlink.NUD_INCOMPLETE: "incomplete", netlink.NUD_REACHABLE: "reachable", netlink.NUD_STALE: "stale", netlink.NUD_DELAY: "delay",
				netlink.NUD_PROBE: "probe", netlink.NUD_FAILED: "failed", netlink.NUD_PERMANENT: "permanent", netlink.NUD_NOARP: "noarp",
			}[n.State]
		}
	}
	return "none"
}

// programs returns the BPF programs on an interface.
func programs(name string) (all []string) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		all = append(all, "xdp "+name+": "+programName(ebpf.ProgramID(x.ProgId)))
	}
	for where, at := range map[string]ebpf.AttachType{"tcx ingress ": ebpf.AttachTCXIngress, "tcx egress ": ebpf.AttachTCXEgress} {
		found, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: at})
		if err != nil {
			continue
		}
		for _, p := range found.Programs {
			all = append(all, where+name+": "+programName(p.ID))
		}
	}
	slices.Sort(all)
	return all
}

// programName returns the name that the loader gave a program; without the right to ask, its number.
func programName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "program " + itoa(uint64(id))
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name == "" {
		return "program " + itoa(uint64(id))
	}
	return info.Name
}
