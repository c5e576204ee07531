package probe_test

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/path/probe"
	"github.com/fairway-net/fairway/internal/path/trace"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/internal/testing/twonodes"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// A fault is one fault, how it is provoked, and what proves it.
type fault struct {
	name  string // with the number in the list of faults that `fairway path` names
	proto api.Proto
	// from and to are the client and the address; zero: the client pod, and the Service's address.
	outside  bool
	fromNode bool
	to       string
	size     int
	port     uint16
	relayed  bool
	open     twonodes.Open // nil: mode nftables
	serve    string        // where the server listens; "": nowhere
	provoke  func(t *testing.T, c *twonodes.Cluster)
	class    trace.Class
	node     string
	finding  trace.Code
	facts    string // a part of the finding's facts
	heard    trace.Outcome
	// agent is what an unprivileged agent finds; nil: the same. It has no drop reasons, cannot enter pods, and injects.
	agent *found
}

type found struct {
	class   trace.Class
	node    string
	finding trace.Code
	facts   string
}

const (
	pod = "10.244.2.6:8080"
	// firewall is another program's table.
	firewall = "table ip firewall {\nchain %s {\ntype filter hook %s priority 10;\n%s\n}\n}"
)

var faults = []fault{
	{name: "0 healthy", proto: api.TCP, serve: pod, class: trace.Delivered, node: "node-2", heard: trace.Answered},
	{name: "0 healthy, UDP", proto: api.UDP, serve: pod, class: trace.Delivered, node: "node-2", heard: trace.Answered},
	{name: "0 healthy, NodePort from outside", proto: api.TCP, outside: true, to: "172.18.0.11:30080", serve: pod, class: trace.Delivered, node: "node-2", heard: trace.Answered},
	{name: "0 healthy, mode iptables", proto: api.TCP, serve: pod, open: openIPTables, class: trace.Delivered, node: "node-2", heard: trace.Answered},
	{name: "0 healthy, mode userspace", proto: api.TCP, serve: pod, open: openUserspace, relayed: true, class: trace.Delivered, node: "node-2", heard: trace.Answered, agent: &found{class: trace.Delivered, node: "node-1"}},
	{name: "0 healthy, from the node", proto: api.TCP, fromNode: true, serve: pod, class: trace.Delivered, node: "node-2", heard: trace.Answered},
	{name: "0 healthy, endpoint on the client's node", proto: api.TCP, provoke: endpointNear, class: trace.Delivered, node: "node-1", heard: trace.Answered},
	{name: "0 healthy, a pod calls itself", proto: api.TCP, provoke: endpointIsClient, class: trace.Delivered, node: "node-1", heard: trace.Answered},
	{name: "0 healthy, from outside, endpoint on the host network of the second node", proto: api.TCP, outside: true, to: "172.18.0.11:30080", provoke: endpointIsNode, class: trace.Delivered, node: "node-2", heard: trace.Answered},
	{name: "8 a port that the Service has not", proto: api.TCP, to: "10.96.0.1:81", serve: pod, class: trace.RefusedBy, node: "node-1", finding: trace.OwnRule, facts: "reject with tcp reset", heard: trace.Refused},
	{
		name: "9 UDP to a TCP port", proto: api.UDP, serve: pod, class: trace.RefusedBy, node: "node-1", finding: trace.OwnRule, facts: "reject", heard: trace.Refused,
		provoke: func(_ *testing.T, c *twonodes.Cluster) {
			c.Sync(func(f *service.Frontend) {
				if f.Proto == api.UDP {
					f.Internal = nil
				}
			})
		},
	},
	{name: "10 nothing listens on the port", proto: api.TCP, serve: "10.244.2.6:8081", class: trace.RefusedBy, node: "node-2", finding: trace.NoListener, facts: "10.244.2.6:8081", heard: trace.Refused, agent: &found{class: trace.RefusedBy, node: "node-2", finding: trace.EndpointRefuses, facts: "10.244.2.6:8080"}},
	{name: "10 nothing listens on the port, UDP", proto: api.UDP, class: trace.RefusedBy, node: "node-2", finding: trace.NoListener, facts: "10.244.2.6:8080", heard: trace.Refused, agent: &found{class: trace.RefusedBy, node: "node-2", finding: trace.EndpointRefuses, facts: "10.244.2.6:8080"}},
	{name: "11 server on 127.0.0.1", proto: api.TCP, serve: "127.0.0.1:8080", class: trace.RefusedBy, node: "node-2", finding: trace.OtherAddress, facts: "127.0.0.1:8080", heard: trace.Refused, agent: &found{class: trace.RefusedBy, node: "node-2", finding: trace.EndpointRefuses, facts: "10.244.2.6:8080"}},
	{
		name: "18 loadBalancerSourceRanges", proto: api.TCP, outside: true, to: "203.0.113.7:80", serve: pod, class: trace.DroppedBy, node: "node-1", finding: trace.OwnRule, facts: "dropped", heard: trace.Silent,
		provoke: func(_ *testing.T, c *twonodes.Cluster) {
			lb := netip.MustParseAddrPort("203.0.113.7:80")
			c.Sync(func(f *service.Frontend) {
				if f.ClusterIP {
					f.Addr, f.ClusterIP, f.Sources = lb, false, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
				}
			})
			if err := c.Net.Route(netip.PrefixFrom(lb.Addr(), 32), c.Nodes[0]); err != nil {
				panic(err)
			}
		},
	},
	{
		name: "20 NodePort on another address of the node", proto: api.TCP, to: "10.0.0.5:30080", serve: pod, class: trace.RefusedBy, node: "node-1", finding: trace.NotAnAddress, facts: "10.0.0.5", heard: trace.Refused,
		provoke: func(_ *testing.T, c *twonodes.Cluster) { c.Nodes[0].AddAddr(netip.MustParseAddr("10.0.0.5")) },
	},
	{
		name: "24 a chain of ours is empty", proto: api.TCP, serve: pod, class: trace.LostAfter, node: "node-1", finding: trace.NotTranslated, facts: "eth0", heard: trace.Unreachable,
		provoke: func(_ *testing.T, c *twonodes.Cluster) {
			c.Run(c.Nodes[0], "flush chain inet fairway prerouting", "nft", "-f", "-")
		},
	},
	{
		name: "25 another program's rule", proto: api.TCP, serve: pod, class: trace.DroppedBy, node: "node-1", finding: trace.ForeignRule, facts: "ip firewall forward #2", heard: trace.Silent,
		provoke: func(_ *testing.T, c *twonodes.Cluster) { firewallOn(c, 0, "forward", "tcp dport 8080 drop") },
	},
	{
		name: "25 another program's rule on the second node rejects", proto: api.TCP, serve: pod, class: trace.RefusedBy, node: "node-2", finding: trace.ForeignRule, facts: "ip firewall forward #2", heard: trace.Unreachable,
		provoke: func(_ *testing.T, c *twonodes.Cluster) {
			firewallOn(c, 1, "forward", "tcp dport 8080 reject with icmp type host-unreachable")
		},
	},
	{
		name: "26 another program's rule in INPUT, mode userspace", proto: api.TCP, serve: pod, open: openUserspace, relayed: true, class: trace.DroppedBy, node: "node-1", finding: trace.ForeignRule, facts: "ip firewall input #2", heard: trace.Silent,
		provoke: func(_ *testing.T, c *twonodes.Cluster) { firewallOn(c, 0, "input", "ip daddr 10.96.0.1 drop") },
	},
	{
		name: "27 a tc program", proto: api.TCP, serve: pod, class: trace.DroppedBy, node: "node-2", finding: trace.TCProgram, facts: "tcx ingress eth0: site_policy", heard: trace.Silent, agent: &found{class: trace.LostAfter, node: "node-1", finding: trace.TCProgram, facts: "tcx ingress eth0: program "},
		provoke: func(t *testing.T, c *twonodes.Cluster) { dropByTCX(t, c, c.Nodes[1], "eth0") },
	},
	{
		name: "30 no route", proto: api.TCP, serve: pod, class: trace.DroppedBy, node: "node-1", finding: trace.NoRoute, facts: "10.244.2.6", heard: trace.Unreachable,
		provoke: func(_ *testing.T, c *twonodes.Cluster) { c.Run(c.Nodes[0], "", "ip", "route", "del", "default") },
	},
	{
		name: "31 a silent neighbour", proto: api.TCP, serve: pod, class: trace.LostAfter, node: "node-1", finding: trace.NeighbourFailed, facts: "172.18.0.99", heard: trace.Silent,
		provoke: func(_ *testing.T, c *twonodes.Cluster) {
			c.Run(c.Nodes[0], "", "ip", "route", "add", "10.244.2.0/24", "via", "172.18.0.99")
		},
	},
	{
		name: "32 forwarding is off", proto: api.TCP, serve: pod, class: trace.DroppedBy, node: "node-1", finding: trace.ForwardingOff, facts: "net.ipv4.ip_forward", heard: trace.Silent,
		provoke: func(t *testing.T, c *twonodes.Cluster) {
			if err := c.Nodes[0].Sysctl("ipv4/ip_forward", "0"); err != nil {
				t.Fatal(err)
			}
		},
	},
	{
		name: "33 rp_filter, and the way back leads elsewhere", proto: api.TCP, serve: pod, class: trace.DroppedBy, node: "node-2", finding: trace.ReversePath, facts: "eth0", heard: trace.Silent,
		provoke: func(t *testing.T, c *twonodes.Cluster) {
			c.Run(c.Nodes[1], "", "ip", "link", "add", "other0", "type", "veth", "peer", "name", "other1")
			c.Run(c.Nodes[1], "", "ip", "link", "set", "other0", "up")
			c.Run(c.Nodes[1], "", "ip", "link", "set", "other1", "up")
			c.Run(c.Nodes[1], "", "ip", "route", "add", "10.244.1.0/24", "dev", "other0")
			if err := c.Nodes[1].Sysctl("ipv4/conf/eth0/rp_filter", "1"); err != nil {
				t.Fatal(err)
			}
		},
	},
	{
		name: "34 a link's MTU", proto: api.UDP, size: 1300, serve: pod, class: trace.DroppedBy, node: "node-2", finding: trace.TooLarge, facts: "1000", heard: trace.TooBig,
		provoke: func(_ *testing.T, c *twonodes.Cluster) {
			c.Run(c.Nodes[1], "", "ip", "link", "set", "veth2", "mtu", "1000")
		},
	},
	{
		name: "36 conntrack leads to a dead pod", proto: api.UDP, port: 4711, class: trace.RefusedBy, node: "node-2", finding: trace.StaleFlow, facts: pod, heard: trace.Refused,
		provoke: func(t *testing.T, c *twonodes.Cluster) {
			order := c.Order("", api.UDP, c.VIP)
			order.Port, order.Send = 4711, &trace.Send{Patience: 200 * time.Millisecond}
			fault{}.send(t, c, order)
			c.Endpoint = netip.MustParseAddrPort("10.244.2.9:8080") // the new pod
			c.Sync(nil)
		},
	},
	{
		name: "37 the answer comes back by another way", proto: api.TCP, outside: true, to: "172.18.0.11:30080", serve: pod, class: trace.ReplyLost, node: "node-2", finding: trace.ReplyAstray, facts: "node-2", heard: trace.Silent,
		provoke: func(_ *testing.T, c *twonodes.Cluster) {
			c.Sync(func(f *service.Frontend) { f.Internal.Masquerade = service.MasqueradeHairpin })
		},
	},
	{
		name: "38 the accept queue is full", proto: api.TCP, class: trace.Unanswered, node: "node-2", finding: trace.QueueFull, facts: "backlog:1", heard: trace.Silent, agent: &found{class: trace.Unanswered, node: "node-2", finding: trace.EndpointSilent, facts: "10.244.2.6:8080"},
		provoke: fillQueue,
	},
}

func firewallOn(c *twonodes.Cluster, node int, hook, rule string) {
	c.Run(c.Nodes[node], fmt.Sprintf(firewall, hook, hook, rule), "nft", "-f", "-")
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, f := range faults {
		for _, unprivileged := range []bool{false, true} {
			t.Run(f.name+map[bool]string{true: ", as an agent"}[unprivileged], func(t *testing.T) {
				t.Parallel()
				f.test(t, unprivileged)
			})
		}
	}
}

func (f fault) test(t *testing.T, unprivileged bool) {
	open := twonodes.NFTables
	if f.open != nil {
		open = f.open
	}
	c := twonodes.New(t, true, open)
	network := strings.ToLower(f.proto.String())
	if f.serve != "" {
		c.Server.Serve(network, netip.MustParseAddrPort(f.serve))
	}
	if f.provoke != nil {
		f.provoke(t, c)
	}
	to := c.VIP
	if f.to != "" {
		to = netip.MustParseAddrPort(f.to)
	}
	order := c.Order("", f.proto, to)
	c.Unprivileged = unprivileged
	if f.agent != nil && unprivileged {
		f.class, f.node, f.finding, f.facts = f.agent.class, f.agent.node, f.agent.finding, f.agent.facts
	}
	order.Port, order.Relayed = f.port, f.relayed
	order.Send = &trace.Send{Patience: 20 * time.Second, Size: f.size} // a busy machine
	if f.heard == trace.Silent {
		order.Send.Patience = 700 * time.Millisecond
	}
	var heard trace.Heard
	all := c.Watch(order, func() { heard = f.send(t, c, order) })
	record := trace.Record{To: to, Endpoints: order.Endpoints, Observations: all, Heard: heard, Sender: "node-1", Relayed: f.relayed, Watched: []string{"node-1", "node-2"}}
	way := trace.Follow(record)
	record.Observations = secondFirst(all)
	if again := trace.Follow(record); !reflect.DeepEqual(again, way) {
		t.Errorf("with the second node first the way is another one:\n%s", summary(again, heard))
	}
	t.Log(summary(way, heard))
	if way.End.Class != f.class || way.End.Node != f.node || heard.Outcome != f.heard {
		t.Errorf("end %+v, heard %+v; want %s at %s, heard %s", way.End, heard, f.class, f.node, f.heard)
	}
	if f.finding == "" {
		if len(way.Findings) > 0 && f.class == trace.Delivered {
			t.Errorf("findings of a healthy way: %+v", way.Findings)
		}
		return
	}
	if len(way.Findings) == 0 || way.Findings[0].Code != f.finding || !strings.Contains(fmt.Sprint(way.Findings[0].Facts), f.facts) {
		t.Errorf("findings %+v, want first %s with %s", way.Findings, f.finding, f.facts)
	}
}

// secondFirst puts the observations of node-2 before those of node-1.
func secondFirst(all []trace.Observation) []trace.Observation {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b trace.Observation) int { return -strings.Compare(a.Node, b.Node) })
	return all
}

// send sends from the client's namespace, as the node does for a pod.
func (f fault) send(t *testing.T, c *twonodes.Cluster, order trace.Order) (heard trace.Heard) {
	t.Helper()
	from := c.Nodes[0]
	if f.outside {
		from = c.Net.Outside
	} else if !f.fromNode {
		order.Send.Pod = c.Client.Addr(true)
	}
	c.Observe(from, func() error {
		heard = probe.Send(t.Context(), order, c.Config())
		return nil
	})
	return heard
}

func summary(w trace.Way, h trace.Heard) string {
	var b strings.Builder
	fmt.Fprintf(&b, "heard %+v\n", h)
	for name, hops := range map[string][]trace.Hop{"→": w.Hops, "←": w.Reply} {
		for _, h := range hops {
			fmt.Fprintf(&b, "%s %s ttl %d  %v  ⇒  %v  %s > %s  left %v known %v, last hook %s\n", name, h.Node, h.TTL, h.Before, h.After, h.In, h.Out, h.Left, h.Known, h.Hook())
		}
	}
	fmt.Fprintf(&b, "end %+v rule %+v drop %+v\nfindings %+v", w.End, w.End.Rule, w.End.Drop, w.Findings)
	return b.String()
}

// moveEndpoint makes an address of a host the only endpoint.
func moveEndpoint(c *twonodes.Cluster, h *testnet.Host, at string) {
	c.Endpoint = netip.MustParseAddrPort(at)
	h.Serve("tcp", c.Endpoint)
	c.Sync(func(f *service.Frontend) { f.Internal.Endpoints[0].Local = true })
}

func endpointNear(_ *testing.T, c *twonodes.Cluster) {
	moveEndpoint(c, c.Net.Pod(c.Nodes[0], "near", netip.MustParseAddr("10.244.1.7")), "10.244.1.7:8080")
}

func endpointIsClient(_ *testing.T, c *twonodes.Cluster) {
	moveEndpoint(c, c.Client, "10.244.1.100:8080")
}

func endpointIsNode(_ *testing.T, c *twonodes.Cluster) {
	moveEndpoint(c, c.Nodes[1], "172.18.0.12:8080")
}

// dropByTCX attaches a program that drops TCP to the Service's endpoint port, as another program would.
func dropByTCX(t *testing.T, c *twonodes.Cluster, h *testnet.Host, name string) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "site_policy", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(14+9, asm.Byte), asm.JNE.Imm(asm.R0, unix.IPPROTO_TCP, "pass"),
		asm.Mov.Imm(asm.R0, 2), asm.Return(), // TC_ACT_SHOT
		asm.Mov.Imm(asm.R0, -1).WithSymbol("pass"), asm.Return(), // TCX_NEXT
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	c.On(h, func() error {
		l, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		attached, err := link.AttachTCX(link.TCXOptions{Interface: l.Index, Program: p, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { _ = attached.Close() })
		}
		return err
	})
}

// fillQueue listens with a backlog of 1, accepts nothing, and connects until the queue is full.
func fillQueue(t *testing.T, c *twonodes.Cluster) {
	t.Helper()
	c.On(c.Server, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 8080}); err != nil {
			return err
		}
		return unix.Listen(fd, 1)
	})
	for range 2 {
		conn, err := c.Client.Dial("tcp", c.Endpoint, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
	}
}

func openIPTables() (datapath.Datapath, error) { return iptables.New(iptables.Config{}) }

func openUserspace() (datapath.Datapath, error) {
	return userspace.New(userspace.Config{})
}
