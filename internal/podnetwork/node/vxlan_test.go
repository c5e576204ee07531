package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// newRouted makes nodes 1 and 2 in one subnet and node 3 in another, behind a router that
// carries no packet of a pod, as a cloud's does.
func newRouted(t testing.TB, way plan.Way, underlay func(addr string) bool, cidrs func(int) []string) *cluster {
	t.Helper()
	c := &cluster{t: t, fabric: newNamespace(t)}
	c.fabric.noDAD()
	c.fabric.run(`echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
		for i in iptables ip6tables; do echo 0 > /proc/sys/net/bridge/bridge-nf-call-$i || true; done # what stays in a subnet is not the router's
		for i in 0 1; do ip link add br$i type bridge; ip link set br$i up; ip addr add 192.0.$((2+i)).254/24 dev br$i; ip addr add 2001:db8:$i::fe/64 dev br$i nodad; done
		nft 'table inet cloud { chain forward { type filter hook forward priority 0
			ip saddr 10.244.0.0/16 counter drop
			ip6 saddr fd00:10:244::/48 counter drop
		}; }'`)
	for i := 1; i <= 3; i++ {
		net := i / 3
		var addrs []string
		for _, addr := range []string{fmt.Sprintf("192.0.%d.%d/24", 2+net, i), fmt.Sprintf("2001:db8:%d::%d/64", net, i)} {
			if underlay(addr) {
				addrs = append(addrs, addr)
			}
		}
		m := c.newMachine(fmt.Sprintf("node-%d", i), fmt.Sprintf("br%d", net), addrs...)
		if underlay("192.0.2.1") {
			m.run(fmt.Sprintf("ip route add default via 192.0.%d.254", 2+net))
		}
		if underlay("2001:db8::1") {
			m.run(fmt.Sprintf("ip route add default via 2001:db8:%d::fe", net))
		}
		m.peer.PodCIDRs = prefixes(cidrs(i)...)
		m.config.Way = way
		m.restart()
	}
	return c
}

func any4(addr string) bool { return !strings.Contains(addr, ":") }
func any6(addr string) bool { return strings.Contains(addr, ":") }
func anyFamily(string) bool { return true }

// reach sends packets from each pod to each.
func reach(pods []*pod) {
	for i, from := range pods {
		for j, to := range pods {
			for k, addr := range to.addrs {
				from.wantSource(fmt.Sprintf("pod %d to pod %d", i, j), addr, from.addrs[k])
			}
		}
	}
}

// TestTunnel: pods in two subnets reach each other, whatever family is below and inside.
func TestTunnel(t *testing.T) {
	for _, test := range []struct {
		name     string
		underlay func(string) bool
		cidrs    func(int) []string
		mtu      int
		ways     []plan.Way
	}{
		{"IPv4", any4, v4, 1400, []plan.Way{plan.WayVXLAN}},
		{"IPv6", any6, v6, 1380, []plan.Way{plan.WayAuto}},
		{"dual stack", anyFamily, dual, 1400, []plan.Way{plan.WayAuto}},
		{"dual stack over IPv6", any6, dual, 1380, []plan.Way{plan.WayVXLAN}},
	} {
		for _, way := range test.ways {
			t.Run(fmt.Sprintf("%s/%s", test.name, way), func(t *testing.T) {
				c := newRouted(t, way, test.underlay, test.cidrs)
				c.sync()
				pods := c.wantCarried(test.mtu)
				plain := strings.Count(c.machines[0].routes(), " dev eth0")
				if want := map[plan.Way]int{plan.WayVXLAN: 0, plan.WayAuto: len(pods[0].addrs)}[way]; plain != want && test.name != "dual stack over IPv6" {
					t.Errorf("%d plain routes, want %d:\n%s", plain, want, c.machines[0].routes())
				}
			})
		}
	}
}

// wantCarried makes a pod on each node, and fails unless all reach each other and the other subnet with the right
// sources and MTU, and no packet of theirs comes to the router as it is.
func (c *cluster) wantCarried(mtu int) []*pod {
	c.t.Helper()
	var pods []*pod
	for _, m := range c.machines {
		m.serve()
		pods = append(pods, m.newPod())
	}
	reach(pods)
	for k, addr := range pods[2].addrs {
		c.machines[0].wantSource("a node to a pod of another subnet", addr, c.machines[0].peer.PodCIDRs[k].Addr())
	}
	for k, addr := range c.machines[2].peer.Addrs {
		if len(pods[0].addrs) == len(c.machines[0].peer.Addrs) {
			pods[0].wantSource("a pod to a node of another subnet", addr, c.machines[0].peer.Addrs[k])
		}
	}
	if out := pods[0].run("ip link show eth0"); !strings.Contains(out, fmt.Sprintf("mtu %d", mtu)) {
		c.t.Errorf("the pod's MTU is not %d: %s", mtu, out)
	}
	if out := c.fabric.run("nft list table inet cloud"); strings.Count(out, "counter packets 0 ") != 2 {
		c.t.Errorf("packets of pods came to the router:\n%s", out)
	}
	return pods
}
