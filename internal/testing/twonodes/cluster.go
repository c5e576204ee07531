package twonodes

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/path/observe"
	"github.com/fairway-net/fairway/internal/path/trace"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// Tag is the DSCP of probes in tests.
const Tag = 11

// A Cluster has two nodes with a datapath, a client pod on the first and an endpoint on the second.
type Cluster struct {
	Net            *testnet.Net
	Nodes          []*testnet.Host
	Client, Server *testnet.Host
	Endpoint       netip.AddrPort
	VIP            netip.AddrPort // of TCP and UDP

	// Unprivileged gives observers and senders the rights of an agent in deploy/: CAP_NET_ADMIN and CAP_NET_RAW.
	Unprivileged bool

	t     testing.TB
	paths []datapath.Datapath
}

// Open opens a datapath for a node.
type Open func() (datapath.Datapath, error)

// NFTables opens mode nftables.
func NFTables() (datapath.Datapath, error) { return nftables.New(nftables.Config{}) }

// New makes a cluster of one family.
func New(t testing.TB, is4 bool, open Open) *Cluster {
	t.Helper()
	c := &Cluster{t: t, Net: testnet.New(t), VIP: netip.MustParseAddrPort("10.96.0.1:80")}
	client, server := netip.MustParseAddr("10.244.1.100"), netip.MustParseAddr("10.244.2.6")
	if !is4 {
		client, server, c.VIP = netip.MustParseAddr("fd00:10:244:1::100"), netip.MustParseAddr("fd00:10:244:2::6"), netip.MustParseAddrPort("[fd00:10:96::1]:80")
	}
	for i := range 2 {
		c.Nodes = append(c.Nodes, c.Net.Node(fmt.Sprintf("node-%d", i+1)))
	}
	c.Client, c.Server = c.Net.Pod(c.Nodes[0], "client", client), c.Net.Pod(c.Nodes[1], "server", server)
	c.Endpoint = netip.AddrPortFrom(server, 8080)
	for range c.Nodes {
		dp, err := open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(dp.Close)
		c.paths = append(c.paths, dp)
	}
	c.Sync(nil)
	return c
}

// Sync writes the Service to both nodes. change may change each frontend.
func (c *Cluster) Sync(change func(f *service.Frontend)) {
	c.t.Helper()
	for i, n := range c.Nodes {
		table := c.table(n, i == 1, change)
		c.On(n, func() error {
			_, err := c.paths[i].Sync(context.Background(), table)
			return err
		})
	}
}

func (c *Cluster) table(n *testnet.Host, local bool, change func(f *service.Frontend)) *service.Table {
	var all []*service.Frontend
	anywhere := netip.IPv6Unspecified()
	if c.VIP.Addr().Is4() {
		anywhere = netip.IPv4Unspecified()
	}
	for _, at := range []netip.AddrPort{c.VIP, netip.AddrPortFrom(anywhere, 30080)} {
		for _, proto := range []api.Proto{api.TCP, api.UDP} {
			route := &service.Route{Masquerade: service.MasqueradeOffCluster, Endpoints: []service.Endpoint{{Addr: c.Endpoint, Local: local}}}
			f := &service.Frontend{
				Addr: at, Proto: proto, Internal: route, External: route, ClusterIP: at == c.VIP,
				Service: api.PortName{Name: api.Name{Namespace: "shop", Name: "db"}, Port: proto.String()},
			}
			if change != nil {
				change(f)
			}
			if f.Internal != nil {
				all = append(all, f)
			}
		}
	}
	own := n.Addr(c.VIP.Addr().Is4())
	return service.NewTable(service.Settings{
		Pods:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")},
		NodePorts: []netip.Prefix{netip.PrefixFrom(own, own.BitLen())},
		NodeIPs:   []netip.Addr{own},
	}, all)
}

// On runs f on a host, and fails the test if f fails.
func (c *Cluster) On(h *testnet.Host, f func() error) {
	c.t.Helper()
	if err := h.Do(f); err != nil {
		c.t.Fatalf("%s: %v", h.Name, err)
	}
}

// Run runs a program on a host, with a text as its input, and returns its output.
func (c *Cluster) Run(h *testnet.Host, input, name string, args ...string) string {
	c.t.Helper()
	var out []byte
	c.On(h, func() (err error) {
		cmd := exec.CommandContext(c.t.Context(), name, args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%s %q: %w: %s", name, args, err, out)
		}
		return err
	})
	return string(out)
}

// Observe is On with the rights that Unprivileged says.
func (c *Cluster) Observe(h *testnet.Host, f func() error) {
	c.t.Helper()
	c.On(h, func() error {
		if c.Unprivileged {
			return asAgent(f)
		}
		return f()
	})
}

// Config says where the namespaces of the pods are: those of a test are in no usual place. An agent sees none.
func (c *Cluster) Config() observe.Config {
	if c.Unprivileged {
		return observe.Config{Namespaces: []string{}}
	}
	return observe.Config{Namespaces: []string{c.Client.Path(), c.Server.Path()}}
}

// Order returns the order for a node.
func (c *Cluster) Order(node string, proto api.Proto, to netip.AddrPort) trace.Order {
	return trace.Order{Run: "t1", Node: node, Proto: uint8(proto), To: to, Endpoints: []netip.AddrPort{c.Endpoint}, Tag: Tag}
}

// Watch arms both nodes, calls send, and returns what the nodes saw.
func (c *Cluster) Watch(order trace.Order, send func()) (all []trace.Observation) {
	c.t.Helper()
	var watches []*observe.Watch
	for _, n := range c.Nodes {
		order.Node = n.Name
		c.Observe(n, func() error {
			w, err := observe.Arm(c.t.Context(), order, c.Config())
			if err == nil {
				c.t.Cleanup(w.Close)
				watches = append(watches, w)
			}
			return err
		})
	}
	send()
	for i, n := range c.Nodes {
		c.Observe(n, func() error {
			some, done := watches[i].Stop(c.t.Context())
			if done.Lost {
				c.t.Errorf("%s lost events", n.Name)
			}
			all = append(all, some...)
			return nil
		})
	}
	return all
}
