package node

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func v4(i int) []string   { return []string{fmt.Sprintf("10.244.%d.0/24", i)} }
func v6(i int) []string   { return []string{fmt.Sprintf("fd00:10:244:%d::/64", i)} }
func dual(i int) []string { return append(v4(i), v6(i)...) }

// TestPodsReachEachOther sends packets between pods of three nodes, to nodes and
// out of the cluster, where no router knows the way back to a pod.
func TestPodsReachEachOther(t *testing.T) {
	for _, family := range []struct {
		name  string
		cidrs func(int) []string
	}{{"IPv4", v4}, {"IPv6", v6}, {"dual stack", dual}} {
		t.Run(family.name, func(t *testing.T) {
			c := newCluster(t, 3, family.cidrs)
			c.sync()
			c.outside.serve()
			var pods []*pod
			for _, m := range c.machines {
				m.serve()
				pods = append(pods, m.newPod())
			}
			pods = append(pods, c.machines[0].newPod())
			for i, from := range pods {
				for j, to := range pods {
					for k, addr := range to.addrs {
						from.wantSource(fmt.Sprintf("pod %d to pod %d", i, j), addr, from.addrs[k])
					}
				}
			}
			for _, addr := range pods[0].addrs {
				nodes, outside, own := []netip.Addr{}, outside6, 1
				if addr.Is4() {
					outside, own = outside4, 0
				}
				for _, m := range c.machines {
					nodes = append(nodes, m.peer.Addrs[own])
				}
				pods[0].wantSource("pod to its own node", nodes[0], addr)
				pods[0].wantSource("pod to another node", nodes[1], addr)
				pods[0].wantSource("pod to the outside", outside, nodes[0])
				c.machines[1].wantSource("another node to pod", addr, nodes[1])
			}
			if out := pods[0].run("ip link show eth0"); !strings.Contains(out, "mtu 1450") {
				t.Errorf("the pod's MTU is not the uplink's: %s", out)
			}
		})
	}
}

// TestDeadPodIsRefusedAtOnce: the node of a podCIDR answers for addresses that
// no pod has; without that the packet would go round by the default route.
func TestDeadPodIsRefusedAtOnce(t *testing.T) {
	c := newCluster(t, 2, dual)
	c.sync()
	p := c.machines[0].newPod()
	for _, addr := range []string{"10.244.2.77", "fd00:10:244:2::77"} {
		err := p.do(func() error {
			out, err := exec.Command("ping", "-c1", "-W30", addr).CombinedOutput()
			if err == nil || !strings.Contains(strings.ToLower(string(out)), "unreachable") {
				return fmt.Errorf("ping %s: %v: %s", addr, err, out)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestClusterCIDRsAreNotMasqueraded also turns masquerading off altogether.
func TestClusterCIDRsAreNotMasqueraded(t *testing.T) {
	c := newCluster(t, 1, v4)
	m := c.machines[0]
	c.outside.run("ip route add 10.244.1.0/24 via 192.0.2.1")
	c.outside.serve()
	m.config.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	m.restart()
	c.sync()
	p := m.newPod()
	p.wantSource("into a cluster CIDR", outside4, p.addrs[0])

	m.config = Config{Log: m.config.Log, CNIBinDir: m.config.CNIBinDir, CNIConfDir: m.config.CNIConfDir, StateDir: m.config.StateDir, Plugin: m.config.Plugin}
	m.restart()
	c.sync()
	p.wantSource("without masquerading", outside4, p.addrs[0])
}

// TestNonMasqueradeCIDRs: what the administrator exempts sees pods' own addresses, and nobody else does; a node that exempts
// all of a family leaves the other as it is, and one that exempts all tracks no connection.
func TestNonMasqueradeCIDRs(t *testing.T) {
	c := newCluster(t, 2, dual)
	m := c.machines[0]
	c.outside.run("ip route add 10.244.1.0/24 via 192.0.2.1; ip route add fd00:10:244:1::/64 via 2001:db8::1; ip addr add 192.0.2.98/24 dev eth0; ip addr add 2001:db8::98/64 dev eth0 nodad")
	c.outside.serve()
	c.sync()
	p, far := m.newPod(), c.machines[1].newPod()
	outside, others := addresses(outside4.String(), outside6.String()), addresses("192.0.2.98", "2001:db8::98")
	for _, test := range []struct {
		exempt string
		own    [4]bool // whether the pod's own address is seen: by outside, by others, IPv4 and IPv6
	}{
		{"", [4]bool{}},
		{"192.0.2.99/32 2001:db8::99/128", [4]bool{true, true, false, false}},
		{"0.0.0.0/0", [4]bool{true, false, true, false}},
		{"0.0.0.0/0 ::/0", [4]bool{true, true, true, true}},
		{"192.0.2.99/32", [4]bool{true, false, false, false}},
	} {
		m.config.NonMasqueradeCIDRs = prefixes(strings.Fields(test.exempt)...)
		m.restart()
		m.mustSync(c.peers())
		m.run("conntrack -F 2>&1")
		for i, to := range slices.Concat(outside, others) {
			want := m.peer.Addrs[i%2]
			if test.own[i] {
				want = p.addrs[i%2]
			}
			p.wantSource(fmt.Sprintf("to %s, %q exempt", to, test.exempt), to, want)
		}
		p.wantSource("to a pod", far.addrs[0], p.addrs[0])
		tracked := strings.TrimSpace(m.run("cat /proc/sys/net/netfilter/nf_conntrack_count"))
		if all := test.own == [4]bool{true, true, true, true}; all != (tracked == "0") {
			t.Errorf("%q exempt: %s connections are tracked", test.exempt, tracked)
		}
	}
}

// TestSyncIsQuiet: when everything is right, also after a restart, Sync changes
// nothing in the kernel and no file.
func TestSyncIsQuiet(t *testing.T) {
	for _, way := range []plan.Way{plan.WayRoutes, plan.WayVXLAN} {
		t.Run(string(way), func(t *testing.T) { testSyncIsQuiet(t, way) })
	}
}

func testSyncIsQuiet(t *testing.T, way plan.Way) {
	c := newCluster(t, 3, dual)
	for _, m := range c.machines {
		m.config.Way = way
		m.restart()
	}
	c.sync()
	m := c.machines[0]
	m.newPod()
	eventually(t, "the kernel's own address detection is over", func() bool { return m.run("ip -6 addr show tentative") == "" })
	files := func() string {
		return m.run(fmt.Sprintf("stat -c '%%n %%i %%y' %s/* %s/*", m.config.CNIBinDir, m.config.CNIConfDir))
	}
	before := files()
	events := &testnet.Log{}
	cmd := exec.Command("ip", "-o", "monitor", "link", "address", "route", "rule", "netconf")
	cmd.Stdout = events
	if err := m.do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	// A monitor that has not started yet would see nothing: wait for it.
	marks := 0
	mark := func() {
		t.Helper()
		marks++
		route := fmt.Sprintf("203.0.113.%d", marks)
		m.run("ip route add unreachable " + route)
		eventually(t, "the monitor reports a mark", func() bool {
			// Replaced by itself, a route would not be reported.
			m.run(fmt.Sprintf("ip route del unreachable %s; ip route add unreachable %s", route, route))
			return events.Count(route) > 0
		})
	}
	mark()
	seen := len(events.String())
	generation := m.generation()
	m.mustSync(c.peers())
	m.restart()
	m.mustSync(c.peers())
	if now := m.generation(); now != generation {
		t.Errorf("Sync without a change made the rules' generation %d of %d", now, generation)
	}
	m.run("nft add table inet counted")
	if m.generation() == generation {
		t.Error("the rules' generation does not count changes")
	}
	mark()
	for _, line := range strings.Split(events.String()[seen:], "\n") {
		// The kernel reports its own address of a pod's link, which has no ARP, again up to a second later.
		own := strings.Contains(line, " inet6 fe80:") && !strings.HasPrefix(line, "Deleted")
		if line != "" && !own && !strings.Contains(line, "203.0.113.") {
			t.Errorf("Sync without a change did: %s", line)
		}
	}
	if after := files(); after != before {
		t.Errorf("files before:\n%safter:\n%s", before, after)
	}
}

// TestRestartTidies: routes of an earlier run that are wrong by now are mended,
// everyone else's stay.
func TestRestartTidies(t *testing.T) {
	c := newCluster(t, 3, dual)
	m := c.machines[0]
	m.run(`ip route add 10.244.9.0/24 via 192.0.2.9 proto 70
		ip route add 10.244.2.0/24 via 192.0.2.3 proto 70
		ip route add unreachable 10.244.8.0/24 proto 70
		ip route add unreachable 10.244.3.0/24 proto 70
		ip -6 route add fd00:10:244:9::/64 via 2001:db8::9 proto 70
		ip -6 route add fd00:10:244:2::/64 via 2001:db8::3 proto 70
		ip -6 route add fd00:10:244:2::/64 via 2001:db8::3 proto 70 metric 7
		ip route add 10.77.0.0/16 via 192.0.2.9 proto static
		ip route add 10.244.7.5 dev lo proto 70 scope link`)
	c.sync()
	want := strings.TrimSpace(`
10.244.2.0/24 via 192.0.2.2 dev eth0
10.244.3.0/24 via 192.0.2.3 dev eth0
10.244.7.5 dev lo
fd00:10:244:2::/64 via 2001:db8::2 dev eth0
fd00:10:244:3::/64 via 2001:db8::3 dev eth0
unreachable 10.244.1.0/24
unreachable fd00:10:244:1::/64 dev lo`)
	if got := m.routes(); got != want {
		t.Errorf("routes:\n%s\nwant:\n%s", got, want)
	}
	if out := m.run("ip route show 10.77.0.0/16"); !strings.Contains(out, "proto static") {
		t.Errorf("a foreign route was touched: %q", out)
	}

	// A node leaves, another gets a new address. Routes to the one that left stay for a minute.
	peers := c.peers()[:2]
	peers[1].Addrs = []netip.Addr{netip.MustParseAddr("192.0.2.22"), netip.MustParseAddr("2001:db8::22")}
	m.mustSync(peers)
	want = strings.Replace(want, "192.0.2.2 ", "192.0.2.22 ", 1)
	want = strings.Replace(want, "2001:db8::2 ", "2001:db8::22 ", 1)
	if got := m.routes(); got != want {
		t.Errorf("routes when a node left:\n%s\nwant:\n%s", got, want)
	}
	m.network.now = func() time.Time { return time.Now().Add(plan.KeepDeparted) }
	m.mustSync(peers)
	want = strings.TrimSpace(`
10.244.2.0/24 via 192.0.2.22 dev eth0
10.244.7.5 dev lo
fd00:10:244:2::/64 via 2001:db8::22 dev eth0
unreachable 10.244.1.0/24
unreachable fd00:10:244:1::/64 dev lo`)
	if got := m.routes(); got != want {
		t.Errorf("routes a minute after a node left:\n%s\nwant:\n%s", got, want)
	}
}

// TestBadPeers: one bad node is reported once and disturbs no other.
func TestBadPeers(t *testing.T) {
	c := newCluster(t, 2, dual)
	m := c.machines[0]
	m.run("ip route add 10.244.40.0/24 via 192.0.2.99 proto static")
	addr, cidr := netip.MustParseAddr, netip.MustParsePrefix
	bad := map[string]plan.Peer{
		"behind a router":                  {Name: "far", Addrs: []netip.Addr{addr("198.51.100.7")}, PodCIDRs: []netip.Prefix{cidr("10.244.30.0/24")}},
		"node nameless has podCIDR":        {Name: "nameless", PodCIDRs: []netip.Prefix{cidr("10.244.31.0/24")}},
		"contains every address":           {Name: "greedy", Addrs: []netip.Addr{addr("192.0.2.50")}, PodCIDRs: []netip.Prefix{cidr("0.0.0.0/0")}},
		"contains this node's address":     {Name: "squatter", Addrs: []netip.Addr{addr("192.0.2.51")}, PodCIDRs: []netip.Prefix{cidr("192.0.2.0/25")}},
		"overlaps 10.244.1.0/24 of node n": {Name: "thief", Addrs: []netip.Addr{addr("192.0.2.52")}, PodCIDRs: []netip.Prefix{cidr("10.244.1.128/25")}},
		"overlaps 10.244.2.0/24 of node n": {Name: "zwilling", Addrs: []netip.Addr{addr("192.0.2.53")}, PodCIDRs: []netip.Prefix{cidr("10.244.2.0/24")}},
		"another program's and stays":      {Name: "static", Addrs: []netip.Addr{addr("192.0.2.54")}, PodCIDRs: []netip.Prefix{cidr("10.244.40.0/24")}},
		"is not used: it is no prefix":     {Name: "void", Addrs: []netip.Addr{addr("192.0.2.55")}, PodCIDRs: []netip.Prefix{{}}},
		"fd00:bad::/64 but no usable Inte": {Name: "v4only", Addrs: []netip.Addr{addr("192.0.2.56")}, PodCIDRs: []netip.Prefix{cidr("10.244.56.0/24"), cidr("fd00:bad::/64")}},
	}
	peers := c.peers()
	for _, peer := range bad {
		peers = append(peers, peer)
	}
	for range 2 {
		m.mustSync(peers)
	}
	for want := range bad {
		if got := m.log.Count(want); got != 1 {
			t.Errorf("%q was logged %d times, want once", want, got)
		}
	}
	want := strings.TrimSpace(`
10.244.2.0/24 via 192.0.2.2 dev eth0
10.244.56.0/24 via 192.0.2.56 dev eth0
fd00:10:244:2::/64 via 2001:db8::2 dev eth0
unreachable 10.244.1.0/24
unreachable fd00:10:244:1::/64 dev lo`)
	if got := m.routes(); got != want {
		t.Errorf("routes:\n%s\nwant:\n%s", got, want)
	}
	if out := m.run("ip route show 10.244.40.0/24"); !strings.Contains(out, "proto static") {
		t.Errorf("a foreign route was touched: %q", out)
	}
}

// TestMasqueradeHeals: whatever was done to our table is undone, and other
// tables, the Service proxy's first of all, are left alone.
func TestMasqueradeHeals(t *testing.T) {
	c := newCluster(t, 2, dual)
	m := c.machines[0]
	m.run("nft add table inet fairway; nft 'add set inet fairway pods4 { type ipv4_addr; }'")
	c.sync()
	want := m.run("nft -s list ruleset")
	for _, damage := range []string{
		"nft flush chain inet fairway-pods postrouting",
		"nft delete table inet fairway-pods",
		"nft flush set inet fairway-pods non-masquerade4",
		"nft add element inet fairway-pods pods4 '{ 10.9.0.0/16 }'",
		"nft add rule inet fairway-pods postrouting accept",
		"nft 'flush chain inet fairway-pods postrouting; add rule inet fairway-pods postrouting masquerade comment \"pods.nft old\"'",
	} {
		m.run(damage)
		if m.run("nft -s list ruleset") == want {
			t.Fatalf("%s did no damage", damage)
		}
		c.sync()
		if got := m.run("nft -s list ruleset"); got != want {
			t.Errorf("after %q and Sync:\n%s\nwant:\n%s", damage, got, want)
		}
	}
}

// TestMasqueradeUpgrade: the table that agents up to version 0.2 made becomes today's.
func TestMasqueradeUpgrade(t *testing.T) {
	c := newCluster(t, 2, dual)
	m := c.machines[0]
	sorted := func() string {
		lines := strings.Split(m.run("nft -s list table inet fairway-pods"), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	c.sync()
	want := sorted()
	m.run(`nft 'delete table inet fairway-pods; table inet fairway-pods {
		set pods4 { type ipv4_addr; flags interval; elements = { 10.244.1.0/24 }; }
		set pods6 { type ipv6_addr; flags interval; }
		set inside4 { type ipv4_addr; flags interval; elements = { 10.244.1.0/24, 10.244.9.0/24 }; }
		set inside6 { type ipv6_addr; flags interval; }
		chain postrouting {
			type nat hook postrouting priority srcnat + 10; policy accept;
			ip saddr @pods4 ip daddr != @inside4 masquerade fully-random comment "pods.nft 0123"
			ip6 saddr @pods6 ip6 daddr != @inside6 masquerade fully-random comment "pods.nft 0123"
		}
	}'`)
	m.restart()
	c.sync()
	if got := sorted(); got != want {
		t.Errorf("after an upgrade:\n%s\nwant:\n%s", got, want)
	}
}

// TestForwardingKeepsTheDefaultRoute: a router ignores router advertisements
// unless accept_ra is 2, so a node that lives on them must set it.
func TestForwardingKeepsTheDefaultRoute(t *testing.T) {
	c := newCluster(t, 1, dual)
	m := c.machines[0]
	m.run("ip -6 route replace default via fe80::99 dev eth0 proto ra")
	m.mustSync(nil)
	want := map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/eth0/accept_ra": "2"}
	for name, value := range want {
		if got := strings.TrimSpace(m.run("cat /proc/sys/net/" + name)); got != value {
			t.Errorf("%s is %s, want %s", name, got, value)
		}
	}
}

// found compares what there is of the pod network.
func (m *machine) found(want string) {
	m.t.Helper()
	err := m.do(func() error {
		parts, err := m.network.Found(m.t.Context())
		if got := strings.Join(parts, ", "); got != want {
			m.t.Errorf("found %q, want %q", got, want)
		}
		return err
	})
	if err != nil {
		m.t.Error(err)
	}
}

// TestCleanup leaves no trace but forwarding.
func TestCleanup(t *testing.T) {
	c := newCluster(t, 2, dual)
	m := c.machines[0]
	state := func() string {
		return m.run(fmt.Sprintf("ip route; ip -6 route; nft list ruleset; find %s %s -type f -o -type l", m.config.CNIBinDir, m.config.CNIConfDir))
	}
	m.run(fmt.Sprintf("mkdir -p %s %s; nft add table inet fairway", m.config.CNIBinDir, m.config.CNIConfDir))
	before := state()
	c.sync()
	if state() == before {
		t.Fatal("Sync did nothing")
	}
	p := m.newPod()
	m.found("table inet fairway-pods, 4 routes of protocol 70, " +
		filepath.Join(m.config.CNIConfDir, configName) + ", " + filepath.Join(m.config.CNIBinDir, cni.PluginName))
	for range 2 {
		if err := m.do(func() error { return m.network.Cleanup(t.Context()) }); err != nil {
			t.Fatalf("Cleanup: %v", err)
		}
	}
	if m.log.Count("pods are still running") != 2 {
		t.Error("Cleanup did not warn of a running pod")
	}
	m.found("")
	p.run("ip link del eth0")
	if after := state(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	// And it can begin again.
	c.sync()
}
