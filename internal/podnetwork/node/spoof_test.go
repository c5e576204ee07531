package node

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/kernel/checksum"
	"github.com/fairway-net/fairway/internal/service"
)

var balancers = addresses("203.0.113.10", "2001:db8:113::10")

// serveWeb carries one Service with real rules: load balancer addresses that only sources
// may use, with affinity, in front of a pod.
func (m *machine) serveWeb(p *pod, sources []netip.Prefix) {
	m.t.Helper()
	name := api.Name{Namespace: "default", Name: "web"}
	svc := &service.Service{
		Name: name, ClusterIPs: addresses("10.96.0.10", "fd00:96::10"), BalancerIPs: balancers, Sources: sources,
		Ports: []service.Port{{Name: "http", Proto: api.TCP, Port: 8080}}, Affinity: time.Hour,
	}
	var eps []*service.Slice
	for _, addr := range p.addrs {
		eps = append(eps, &service.Slice{
			Name: api.Name{Namespace: "default", Name: fmt.Sprintf("web-%t", addr.Is4())}, Service: name,
			Ports:     []service.SlicePort{{Name: "http", Proto: api.TCP, Port: 8080}},
			Endpoints: []service.SliceEndpoint{{Addr: addr, Node: m.peer.Name, Ready: true, Serving: true}},
		})
	}
	facts := service.Facts{Node: service.Node{Name: m.peer.Name, Settings: service.Settings{Pods: m.peer.PodCIDRs}}}
	builder := service.NewBuilder()
	builder.Set(service.Compile(svc, eps, facts))
	datapath, err := nftables.New(nftables.Config{})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(datapath.Close)
	err = m.do(func() error {
		_, err := datapath.Sync(m.t.Context(), builder.Table(facts.Settings))
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// connect sends a SYN from an address that the pod gave itself. Nothing answers if it is not
// the pod's own.
func (p *pod) connect(from, to netip.Addr) {
	p.t.Helper()
	p.run(fmt.Sprintf("ip addr replace %s dev lo nodad", netip.PrefixFrom(from, from.BitLen())))
	err := p.do(func() error {
		domain, own, peer := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: from.As16()}), unix.Sockaddr(&unix.SockaddrInet6{Addr: to.As16(), Port: 8080})
		if from.Is4() {
			domain, own, peer = unix.AF_INET, &unix.SockaddrInet4{Addr: from.As4()}, &unix.SockaddrInet4{Addr: to.As4(), Port: 8080}
		}
		fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		p.t.Cleanup(func() { unix.Close(fd) })
		if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, own); err != nil {
			return err
		}
		if err := unix.Connect(fd, peer); err != unix.EINPROGRESS {
			return fmt.Errorf("connect from %s to %s: %w", from, to, err)
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// counted is how many packets the rules of a chain have dropped.
func (m *machine) counted(chain string) (n int) {
	m.t.Helper()
	for _, line := range strings.Split(m.run("nft list chain inet fairway-pods "+chain), "\n") {
		var count int
		if _, after, ok := strings.Cut(line, "counter packets "); ok {
			fmt.Sscan(after, &count)
			n += count
		}
	}
	return n
}

// TestSpoofing: a pod that sends from an address that is not its own passes no source range,
// gets no affinity and reaches nobody, IPv4 and IPv6; with its own it does.
func TestSpoofing(t *testing.T) {
	c := newCluster(t, 2, dual)
	c.sync()
	m := c.machines[0]
	attacker, client, server := m.newPod(), m.newPod(), m.newPod()
	m.serveWeb(server, []netip.Prefix{
		netip.PrefixFrom(client.addrs[0], 32), netip.PrefixFrom(client.addrs[1], 128), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:51::/64"),
	})
	m.run(`nft 'table inet seen {
		chain in {
			type filter hook prerouting priority raw
			iifname "fw*" ip saddr != 127.0.0.0/8 counter
			iifname "fw*" ip6 saddr != { fe80::/10, ::/128 } counter
		}
	}'`)
	false4 := addresses("198.51.100.7", client.addrs[0].String(), "192.0.2.1", "192.0.2.2", "192.0.2.99", "10.244.2.2", "10.244.1.200", "169.254.1.1", "10.96.0.10", "203.0.113.10")
	false6 := addresses("2001:db8:51::7", client.addrs[1].String(), "2001:db8::1", "2001:db8::2", "2001:db8::99", "fd00:10:244:2::2", "fd00:10:244:1::200", "fd00:96::10", "2001:db8:113::10")
	want := 0
	for i, all := range [][]netip.Addr{false4, false6} {
		for _, from := range all {
			for _, to := range []netip.Addr{balancers[i], server.addrs[i], m.peer.Addrs[i]} {
				if from == to {
					continue // would never leave the pod
				}
				attacker.connect(from, to)
				want++
			}
		}
	}
	eventually(t, "all false packets are dropped", func() bool { return m.counted("false-source") >= want })
	if out := m.run("nft list table inet seen"); strings.Count(out, "counter packets 0 ") != 2 {
		t.Errorf("false packets passed the check:\n%s", out)
	}
	if out := m.run("nft list table inet fairway"); strings.Contains(out, "198.51.100.7") || strings.Contains(out, "2001:db8:51::7") {
		t.Error("a false source has affinity")
	}
	for i, to := range balancers { // masqueraded, as to all load balancers' addresses
		client.wantSource("the client that may", to, m.peer.Addrs[i])
	}
	out := m.run("nft list table inet fairway")
	for _, own := range client.addrs {
		if !strings.Contains(out, own.String()+" .") && !strings.Contains(out, ". "+own.String()) {
			t.Errorf("the client's own address %s has no affinity: this test sees nothing:\n%s", own, out)
		}
	}
}

// count begins to count what comes in with these addresses, of both families.
func (p *pod) count(field string, addrs []netip.Addr) {
	p.t.Helper()
	p.run(fmt.Sprintf(`nft 'table inet counted {
		chain in {
			type filter hook prerouting priority raw
			ip %[1]s %[2]s counter
			ip6 %[1]s %[3]s counter
		}
	}'`, field, addrs[0], addrs[1]))
}

// uncounted is in how many families nothing came.
func (p *pod) uncounted() int {
	return strings.Count(p.run("nft list table inet counted"), "counter packets 0 ")
}

// TestStolenMAC: a pod whose link has another pod's MAC address gets none of that pod's packets, and keeps none from it:
// what leads to a pod is the route of its address, by a link of its own.
func TestStolenMAC(t *testing.T) {
	c := newCluster(t, 1, dual)
	c.sync()
	m := c.machines[0]
	attacker, victim, client := m.newPod(), m.newPod(), m.newPod()
	reach([]*pod{attacker, victim, client})
	mac := strings.TrimSpace(victim.run("ip -o link show eth0 | sed 's/.*ether \\([0-9a-f:]*\\).*/\\1/'"))
	gateways := attacker.run("ip neigh show dev eth0 nud permanent") // which the kernel forgets with the link's address
	attacker.run("ip link set eth0 address " + mac)
	for line := range strings.Lines(gateways) {
		f := strings.Fields(line) // ADDRESS lladdr MAC PERMANENT
		attacker.run("ip neigh replace " + f[0] + " dev eth0 nud permanent lladdr " + f[2])
	}
	attacker.count("daddr", victim.addrs)
	client.count("saddr", attacker.addrs)
	for i, to := range client.addrs { // with the MAC, so that the node could learn where it is
		attacker.connect(attacker.addrs[i], to)
	}
	eventually(t, "what the attacker sends with the MAC comes", func() bool { return client.uncounted() == 0 })
	reach([]*pod{victim, client})
	if attacker.uncounted() != 2 {
		t.Errorf("the attacker got what is the victim's:\n%s", attacker.run("nft list table inet counted"))
	}
}

// frame is an Ethernet frame from a pod's link.
func frame(to net.HardwareAddr, kind uint16, payload []byte) []byte {
	b := append(slices.Clone(to), 2, 0xbb, 0, 0, 0, 1)
	return append(binary.BigEndian.AppendUint16(b, kind), payload...)
}

// arp is an ARP packet (RFC 826) that says that addr is at a made-up MAC address.
func arp(op uint16, sender, target netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, byte(op), 2, 0xbb, 0, 0, 0, 1}
	b = append(b, sender.AsSlice()...)
	return append(append(b, 0, 0, 0, 0, 0, 0), target.AsSlice()...)
}

// nd is a neighbour solicitation (135) or advertisement (136, unsolicited, override) with
// a made-up MAC address (RFC 4861).
func nd(kind byte, from, to, target netip.Addr) []byte {
	body := append([]byte{kind, 0, 0, 0, 0x20 * (kind - 135), 0, 0, 0}, target.AsSlice()...)
	body = append(body, 1+(kind-135), 1, 2, 0xbb, 0, 0, 0, 1)
	binary.BigEndian.PutUint16(body[2:], checksum.Transport(from, to, unix.IPPROTO_ICMPV6, body))
	header := append([]byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_ICMPV6, 255}, from.AsSlice()...)
	return slices.Concat(header, to.AsSlice(), body)
}

// linkTo is the node's link to a pod, and its MAC address.
func (m *machine) linkTo(p *pod) (link string, mac net.HardwareAddr) {
	m.t.Helper()
	link = strings.Fields(m.run("ip -o route show " + p.addrs[0].String()))[2]
	mac, err := net.ParseMAC(strings.TrimSpace(m.run("ip -o link show " + link + " | sed 's/.*ether \\([0-9a-f:]*\\).*/\\1/'")))
	if err != nil {
		m.t.Fatal(err)
	}
	return link, mac
}

// send puts frames on the pod's link.
func (p *pod) send(frames [][]byte) {
	p.t.Helper()
	err := p.do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: link.Index}); err != nil && err != unix.ENOBUFS { // the node's end takes none of that size
				return err
			}
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// TestFalseNeighbours: what a pod says by ARP and ND of other hosts' addresses, or of invented
// ones, changes no neighbour entry of the node, and no packet's way; not even where the
// administrator's settings for all links accept such claims.
func TestFalseNeighbours(t *testing.T) {
	c := newCluster(t, 1, dual)
	c.sync()
	m := c.machines[0]
	m.run(`cd /proc/sys/net; for i in all default; do echo 1 > ipv4/conf/$i/arp_accept; echo 1 > ipv4/conf/$i/proxy_arp; echo 2 > ipv4/conf/$i/rp_filter; done; echo 1 > ipv6/conf/default/proxy_ndp
		! [ -e ipv6/conf/default/accept_untracked_na ] || echo 1 > ipv6/conf/default/accept_untracked_na`)
	attacker, victim := m.newPod(), m.newPod()
	outside := addresses(outside4.String(), outside6.String())
	c.outside.serve()
	for i, addr := range outside { // the node knows them from now on
		attacker.wantSource("before", addr, m.peer.Addrs[i])
	}
	neighbours := func() string {
		// Their states change with time; addresses, links and MAC addresses must not. Machines on
		// the node's network may show up by their link-local addresses at any time.
		lines := strings.Split(m.run("ip neigh show nud all | grep -v -e NOARP -e 'dev lo' -e '^fe80.* dev eth0 ' | awk '{print $1, $3, $5}'"), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	eventually(t, "the node's own detection of duplicates is over", func() bool { return m.run("ip -6 addr show tentative") == "" })
	before := neighbours()
	link, mac := m.linkTo(attacker)
	local := netip.MustParsePrefix(strings.Fields(m.run("ip -o -6 addr show scope link dev " + link))[3]).Addr()
	every := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	nodes4, nodes6 := m.peer.Addrs[0], m.peer.Addrs[1]
	var frames [][]byte
	for _, claimed := range append(addresses("192.0.2.1", "192.0.2.50", "10.244.1.77"), victim.addrs[0], outside4) {
		for _, op := range []uint16{1, 2} {
			frames = append(frames, frame(every, unix.ETH_P_ARP, arp(op, claimed, claimed)), frame(every, unix.ETH_P_ARP, arp(op, claimed, nodes4)), frame(mac, unix.ETH_P_ARP, arp(op, claimed, nodes4)))
		}
	}
	group, all := net.HardwareAddr{0x33, 0x33, 0xff, 0, 0, 1}, netip.MustParseAddr("ff02::1")
	solicited := netip.MustParseAddr("ff02::1:ff00:1")
	claims := append(addresses("2001:db8::1", "2001:db8::50", "fe80::1"), victim.addrs[1], outside6)
	for i := range 50 {
		claims = append(claims, netip.MustParseAddr(fmt.Sprintf("fe80::bb:%x", i)), netip.MustParseAddr(fmt.Sprintf("2001:db8::bb:%x", i)))
	}
	for _, claimed := range claims {
		frames = append(frames,
			frame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, unix.ETH_P_IPV6, nd(136, claimed, all, claimed)),
			frame(mac, unix.ETH_P_IPV6, nd(136, claimed, nodes6, claimed)),
			frame(group, unix.ETH_P_IPV6, nd(135, claimed, solicited, nodes6)),
			frame(mac, unix.ETH_P_IPV6, nd(135, claimed, nodes6, nodes6)),
			frame(mac, unix.ETH_P_IPV6, nd(135, claimed, local, local)), // the node's own address on this link
		)
	}
	attacker.send(frames)
	eventually(t, "the claims by ND are dropped", func() bool { return m.counted("false-source") >= 5*len(claims) })
	for i, addr := range outside {
		victim.wantSource("the node's way to the outside", addr, m.peer.Addrs[i])
	}
	m.wantSource("the node's way to the victim", victim.addrs[0], nodes4)
	m.wantSource("the node's way to the victim", victim.addrs[1], nodes6)
	if after := neighbours(); after != before {
		t.Errorf("neighbours before:\n%s\nafter:\n%s", before, after)
	}
	for _, p := range []*pod{attacker, victim} { // DAD has found nothing, and is over
		eventually(t, "the pod's link-local address is usable", func() bool {
			out := p.run("ip -6 addr show dev eth0 scope link")
			return strings.Contains(out, "fe80::") && !strings.Contains(out, "tentative") && !strings.Contains(out, "dadfailed")
		})
	}
}

// TestSourceRouting: a packet that names its way itself goes no such way: NetworkPolicies in the kernel's hook forward see the
// node as its destination, and a pod would get it; not even where the administrator's settings allow it.
func TestSourceRouting(t *testing.T) {
	c := newCluster(t, 1, dual)
	c.sync()
	m := c.machines[0]
	m.run("for i in all default; do echo 1 > /proc/sys/net/ipv4/conf/$i/accept_source_route; done")
	attacker, victim := m.newPod(), m.newPod()
	victim.run(`nft 'table inet seen { chain in { type filter hook prerouting priority raw; ip protocol udp ip hdrlength 7 counter; ip protocol udp ip hdrlength 5 counter; }; }'`)
	victim.run("for i in all eth0; do echo 1 > /proc/sys/net/ipv4/conf/$i/accept_source_route; done")
	_, mac := m.linkTo(attacker)
	plain := emptyDatagram(attacker.addrs[0], victim.addrs[0])
	lsrr := slices.Concat([]byte{131, 7, 4}, victim.addrs[0].AsSlice(), []byte{0})
	by := slices.Concat(emptyDatagram(attacker.addrs[0], m.peer.Addrs[0])[:20], lsrr, plain[20:])
	by[0], by[3] = 0x40|byte(20+len(lsrr))/4, byte(len(by))
	by[10], by[11] = 0, 0
	binary.BigEndian.PutUint16(by[10:], checksum.Of(by[:20+len(lsrr)]))
	attacker.send([][]byte{frame(mac, unix.ETH_P_IP, by), frame(mac, unix.ETH_P_IP, plain)})
	seen := func() string { return victim.run("nft list table inet seen") }
	eventually(t, "the packet after it comes", func() bool { return strings.Contains(seen(), "hdrlength 5 counter packets 1 ") })
	if out := seen(); !strings.Contains(out, "hdrlength 7 counter packets 0 ") {
		t.Errorf("a packet came by the way that it named:\n%s", out)
	}
}
