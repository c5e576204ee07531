package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/service"
)

// The node's port of a Service, and the hostPort of its pod.
const nodePort, hostPort = 30080, 8088

// A datapathMaker makes the Service proxy of a node.
type datapathMaker func(testing.TB) datapath.Datapath

func byNFTables(t testing.TB) datapath.Datapath { return made(nftables.New(nftables.Config{}))(t) }

func byIPTables(t testing.TB) datapath.Datapath {
	return made(iptables.New(iptables.Config{}))(t)
}

func byUserspace(t testing.TB) datapath.Datapath { return made(userspace.New(userspace.Config{}))(t) }

func made[D datapath.Datapath](d D, err error) func(testing.TB) datapath.Datapath {
	return func(t testing.TB) datapath.Datapath {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Close)
		return d
	}
}

// webService has a ClusterIP, a load balancer's address and a NodePort in each family.
func webService() *service.Service {
	return &service.Service{
		Name: api.Name{Namespace: "default", Name: "web"}, ClusterIPs: addresses("10.96.0.10", "fd00:96::10"), BalancerIPs: balancers,
		Ports: []service.Port{{Name: "http", Proto: api.TCP, Port: 8080, NodePort: nodePort}},
	}
}

// carry makes the proxy carry webService with endpoints at port 8080 of some addresses, and a hostPort of a pod of the node.
func (m *machine) carry(d datapath.Datapath, pods []netip.Prefix, endpoints []netip.Addr, host *pod) {
	m.t.Helper()
	svc := webService()
	var slices4and6 []*service.Slice
	for _, addr := range endpoints {
		slices4and6 = append(slices4and6, &service.Slice{
			Name: api.Name{Namespace: "default", Name: fmt.Sprintf("web-%t", addr.Is4())}, Service: svc.Name,
			Ports:     []service.SlicePort{{Name: "http", Proto: api.TCP, Port: 8080}},
			Endpoints: []service.SliceEndpoint{{Addr: addr, Ready: true, Serving: true}},
		})
	}
	facts := service.Facts{Node: service.Node{Name: m.peer.Name, Settings: service.Settings{Pods: pods, NodePorts: prefixes("0.0.0.0/0", "::/0"), NodeIPs: m.peer.Addrs}}}
	builder := service.NewBuilder()
	builder.Set(service.Compile(svc, slices4and6, facts))
	if host != nil {
		builder.Set(service.CompileHostPod(&service.HostPod{
			Name: api.Name{Namespace: "default", Name: "web-0"}, Addrs: service.AddrSet(host.addrs), Ports: []service.HostPort{{Proto: api.TCP, Port: hostPort, To: 8080}},
		}, service.AddrSet(m.peer.Addrs), facts.Node))
	}
	err := m.do(func() error {
		_, err := d.Sync(m.t.Context(), builder.Table(facts.Settings))
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// wantAnswer fails unless a server answers there.
func (n *namespace) wantAnswer(what string, at netip.AddrPort) {
	n.t.Helper()
	if err := n.do(func() error { _, err := ask(at); return err }); err != nil {
		n.t.Errorf("%s, %v: %v", what, at, err)
	}
}

// ask returns the source that the server at an address sees. Without an answer it gives up after a few seconds, because the
// kernel repeats a lost SYN after one.
func ask(at netip.AddrPort) (string, error) {
	conn, err := net.DialTimeout("tcp", at.String(), 5*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && len(answer) == 0 {
		err = errors.New("no answer")
	}
	return string(answer), err
}

// A reachability says who announces the egress address of a pod.
type reachability struct {
	name    string
	gateway int // the node; -1: none
	addr    bool
}

var reachabilities = []reachability{
	{"the pod's node announces the address", 0, true},
	{"another node announces the address", 1, true},
	{"no node announces the address", -1, true},
	{"the Service has no address", -1, false},
}

// setEgress gives the pods of the first node an egress address.
func (c *cluster) setEgress(r reachability, pods ...*pod) {
	c.t.Helper()
	var gateway *machine
	if r.gateway >= 0 {
		gateway = c.machines[r.gateway]
	}
	of := map[*pod]*machine{}
	for _, p := range pods {
		of[p] = c.machines[0]
	}
	c.leaveBy(gateway, of)
	if r.addr {
		return
	}
	all := egressPods{}
	for addr, e := range c.machines[0].network.Egress.(egressPods) {
		all[addr] = plan.EgressPod{Node: e.Node}
	}
	for _, m := range c.machines {
		m.config.Egress, m.network.Egress = all, all
	}
	c.sync()
}

// TestEgressAnswers: clients outside, on nodes and in pods reach a pod with an egress address in every way, whoever announces the
// address. What the pod begins leaves with the address, or is refused.
func TestEgressAnswers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, dual)
	c.outside.serve()
	c.sync()
	home, other := c.machines[0], c.machines[1]
	p := home.newPod()
	clients := map[string]*namespace{
		"outside": c.outside, "the pod's node": home.namespace, "another node": other.namespace,
		"a pod of the node": home.newPod().namespace, "a pod of another node": other.newPod().namespace,
	}
	var cidrs []netip.Prefix
	for _, m := range c.machines {
		cidrs = append(cidrs, m.peer.PodCIDRs...)
		for i, cidr := range m.peer.PodCIDRs {
			c.outside.run(fmt.Sprintf("ip route add %s via %s", cidr, m.peer.Addrs[i]))
		}
	}
	for _, m := range c.machines {
		var host *pod
		if m == home {
			host = p
		}
		m.carry(byNFTables(t), cidrs, p.addrs, host)
	}
	for _, r := range reachabilities {
		c.setEgress(r, p)
		for name, client := range clients {
			for i, addr := range p.addrs {
				what := fmt.Sprintf("%s, from %s", r.name, name)
				client.wantAnswer(what+", the pod's address", netip.AddrPortFrom(addr, 8080))
				client.wantAnswer(what+", hostPort", netip.AddrPortFrom(home.peer.Addrs[i], hostPort))
				for _, m := range c.machines {
					client.wantAnswer(what+", NodePort of "+m.peer.Name, netip.AddrPortFrom(m.peer.Addrs[i], nodePort))
				}
				if client != c.outside {
					client.wantAnswer(what+", LoadBalancer", netip.AddrPortFrom(balancers[i], 8080))
					continue
				}
				for _, m := range c.machines {
					c.outside.run(fmt.Sprintf("ip route replace %s via %s", balancers[i], m.peer.Addrs[i]))
					client.wantAnswer(what+", LoadBalancer by "+m.peer.Name, netip.AddrPortFrom(balancers[i], 8080))
				}
			}
		}
		p.wantEgress(r)
	}
}

// wantEgress fails unless what the pod begins leaves with its egress address, or is refused.
func (p *pod) wantEgress(r reachability) {
	p.t.Helper()
	for i, server := range []netip.Addr{outside4, outside6} {
		if r.gateway >= 0 {
			p.wantSource(r.name+", the pod begins", server, egressOf(p.addrs[i]))
		} else if err := p.do(func() error { return refused(server) }); err != nil {
			p.t.Errorf("%s, the pod begins: %v", r.name, err)
		}
	}
}

// TestEgressWhateverMarks: a pod with an egress address does not leave with its node's address by the NodePort of a Service with an
// endpoint outside, nor because another program marks or masquerades its packets.
func TestEgressWhateverMarks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		proxy datapathMaker
		other string // another program's rules
	}{
		{"nftables", byNFTables, ""},
		{"iptables", byIPTables, ""},
		{"another's mark", byNFTables, "table inet another { chain c { type filter hook prerouting priority mangle; iifname fw* meta mark set 0x1; }; }"},
		{"another's masquerading", byNFTables, "table inet another { chain c { type nat hook postrouting priority srcnat; ip daddr 192.0.2.99 masquerade; ip6 daddr 2001:db8::99 masquerade; }; }"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, dual)
			c.outside.serve()
			c.sync()
			for _, m := range c.machines {
				m.carry(test.proxy(t), m.peer.PodCIDRs, []netip.Addr{outside4, outside6}, nil)
				if test.other != "" {
					m.run("nft '" + test.other + "'")
				}
			}
			c.wantEgressByServices()
		})
	}
}

// wantEgressByServices lets a pod of the first node connect to a server outside, which is the endpoint of webService, by each of its
// addresses.
func (c *cluster) wantEgressByServices() {
	c.t.Helper()
	p := c.machines[0].newPod()
	for _, r := range reachabilities {
		c.setEgress(r, p)
		for i := range p.addrs {
			for k, m := range c.machines {
				by := r
				if k != 0 && k != r.gateway {
					by.gateway = -1 // a third node does not know the way
				}
				p.wantLeave(by, netip.AddrPortFrom(m.peer.Addrs[i], nodePort), egressOf(p.addrs[i]))
			}
			p.wantLeave(r, netip.AddrPortFrom(balancers[i], 8080), egressOf(p.addrs[i]))
			p.wantLeave(r, netip.AddrPortFrom(webService().ClusterIPs[i], 8080), egressOf(p.addrs[i]))
		}
		p.wantEgress(r)
	}
}

// wantLeave fails unless the server behind a Service sees the egress address, or the pod does not reach the server.
func (p *pod) wantLeave(r reachability, at netip.AddrPort, egress netip.Addr) {
	p.t.Helper()
	var source string
	err := p.do(func() (err error) { source, err = ask(at); return err })
	switch {
	case r.gateway < 0 && err == nil:
		p.t.Errorf("%s, to %v: the server outside saw %s, want a refusal", r.name, at, source)
	case r.gateway < 0 && !errors.Is(err, unix.ECONNREFUSED):
		p.t.Errorf("%s, to %v: %v, want a refusal", r.name, at, err)
	case r.gateway >= 0 && (err != nil || source != egress.String()):
		p.t.Errorf("%s, to %v: the server outside saw %q, %v, want %v", r.name, at, source, err, egress)
	}
}

// TestEgressInUserspace: in mode userspace a pod with an egress address reaches Services of the cluster by a load balancer's
// address, which a mark leads to the proxy, whoever announces the egress address.
func TestEgressInUserspace(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, dual)
	c.outside.serve()
	c.sync()
	p, server := c.machines[0].newPod(), c.machines[1].newPod()
	for _, m := range c.machines {
		m.carry(byUserspace(t), m.peer.PodCIDRs, server.addrs, nil)
	}
	for _, r := range reachabilities {
		c.setEgress(r, p)
		for i := range p.addrs {
			p.wantAnswer(r.name+", LoadBalancer", netip.AddrPortFrom(balancers[i], 8080))
			p.wantAnswer(r.name+", NodePort", netip.AddrPortFrom(c.machines[0].peer.Addrs[i], nodePort))
		}
		p.wantEgress(r)
	}
}

// TestEgressByNodesThroughTunnel: where other nodes do not see the pods' own addresses, a pod does not leave with another node's
// address by that node's NodePort either.
func TestEgressByNodesThroughTunnel(t *testing.T) {
	t.Parallel()
	c := newRouted(t, plan.WayVXLAN, anyFamily, dual)
	c.serveFar()
	c.sync()
	c.wantEgressByNodes(c.machines...)
}

// wantEgressByNodes lets a pod of the last node, with an egress address of the first one, connect to the NodePorts of nodes, whose
// endpoint is a server outside. A node that is neither the pod's nor the gateway does not carry that.
func (c *cluster) wantEgressByNodes(nodes ...*machine) {
	c.t.Helper()
	home := len(c.machines) - 1
	p := c.machines[home].newPod()
	for _, m := range c.machines {
		m.carry(byNFTables(c.t), m.peer.PodCIDRs, []netip.Addr{outside4, outside6}, nil)
	}
	c.leaveBy(c.machines[0], map[*pod]*machine{p: c.machines[home]})
	mac := strings.Fields(c.machines[0].run("ip -br link show eth0"))[2]
	c.machines[1].run(fmt.Sprintf("ip neigh replace %s lladdr %s dev eth0; ip neigh replace %s lladdr %[2]s dev eth0", egress4, mac, egress6))
	for i := range p.addrs {
		for _, m := range nodes {
			at := netip.AddrPortFrom(m.peer.Addrs[i], nodePort)
			if m == c.machines[0] || m == c.machines[home] {
				p.wantLeave(reachabilities[1], at, egressOf(p.addrs[i]))
				continue
			}
			_ = p.do(func() error {
				if source, err := ask(at); err == nil {
					c.t.Errorf("by %v the server outside saw %s, want nothing", at, source)
				}
				return nil
			})
		}
		p.wantSource("a server outside", []netip.Addr{outside4, outside6}[i], egressOf(p.addrs[i]))
	}
}
