package observe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/path/observe"
	"github.com/fairway-net/fairway/internal/path/trace"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

const (
	tag    = 11
	dscpAt = tag << 2
)

// A cluster has two nodes with a datapath, a client pod on node-1 and an endpoint on node-2.
type cluster struct {
	t              testing.TB
	net            *testnet.Net
	nodes          []*testnet.Host
	client, server *testnet.Host
	endpoint       netip.AddrPort
	vip            netip.AddrPort
}

var (
	vip4, vip6 = netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("[fd00:10:96::1]:80")
)

func newCluster(t testing.TB, is4 bool, open func() (datapath.Datapath, error)) *cluster {
	t.Helper()
	c := &cluster{t: t, net: testnet.New(t), vip: vip4}
	client, server := netip.MustParseAddr("10.244.1.100"), netip.MustParseAddr("10.244.2.6")
	if !is4 {
		client, server, c.vip = netip.MustParseAddr("fd00:10:244:1::100"), netip.MustParseAddr("fd00:10:244:2::6"), vip6
	}
	for i := range 2 {
		c.nodes = append(c.nodes, c.net.Node(fmt.Sprintf("node-%d", i+1)))
	}
	c.client, c.server = c.net.Pod(c.nodes[0], "client", client), c.net.Pod(c.nodes[1], "server", server)
	c.endpoint = netip.AddrPortFrom(server, 8080)
	for i, n := range c.nodes {
		dp, err := open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(dp.Close)
		c.on(n, func() error {
			_, err := dp.Sync(context.Background(), c.table(n, i == 1, service.MasqueradeOffCluster))
			return err
		})
	}
	return c
}

func openNFTables() (datapath.Datapath, error) { return nftables.New(nftables.Config{}) }

func (c *cluster) table(n *testnet.Host, local bool, masquerade service.Masquerade) *service.Table {
	route := &service.Route{Masquerade: masquerade, Endpoints: []service.Endpoint{{Addr: c.endpoint, Local: local}}}
	var all []*service.Frontend
	for _, at := range []netip.AddrPort{c.vip, netip.AddrPortFrom(unspecified(c.vip), 30080)} {
		for _, proto := range []api.Proto{api.TCP, api.UDP} {
			all = append(all, &service.Frontend{
				Addr: at, Proto: proto, Internal: route, External: route, ClusterIP: at == c.vip,
				Service: api.PortName{Name: api.Name{Namespace: "shop", Name: "db"}, Port: proto.String()},
			})
		}
	}
	own := n.Addr(c.vip.Addr().Is4())
	return service.NewTable(service.Settings{
		Pods:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")},
		NodePorts: []netip.Prefix{netip.PrefixFrom(own, own.BitLen())},
		NodeIPs:   []netip.Addr{own},
	}, all)
}

func unspecified(like netip.AddrPort) netip.Addr {
	if like.Addr().Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (c *cluster) on(h *testnet.Host, f func() error) {
	c.t.Helper()
	if err := h.Do(f); err != nil {
		c.t.Fatalf("%s: %v", h.Name, err)
	}
}

// order returns the order for a node.
func (c *cluster) order(node string, proto api.Proto, to netip.AddrPort) trace.Order {
	return trace.Order{Run: "t1", Node: node, Proto: uint8(proto), To: to, Endpoints: []netip.AddrPort{c.endpoint}, Tag: tag}
}

// config says where the namespaces of the pods are: those of a test are in no usual place.
func (c *cluster) config() observe.Config {
	return observe.Config{Namespaces: []string{c.client.Path(), c.server.Path()}}
}

// watch arms both nodes, calls send, and returns what the nodes saw.
func (c *cluster) watch(proto api.Proto, to netip.AddrPort, send func()) (all []trace.Observation) {
	c.t.Helper()
	var watches []*observe.Watch
	for _, n := range c.nodes {
		c.on(n, func() error {
			w, err := observe.Arm(c.t.Context(), c.order(n.Name, proto, to), c.config())
			if err == nil {
				c.t.Cleanup(w.Close)
				watches = append(watches, w)
			}
			return err
		})
	}
	send()
	for i, n := range c.nodes {
		c.on(n, func() error {
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

// tagged sends a probe as package probe does, and returns the error of the client.
func tagged(h *testnet.Host, network string, to netip.AddrPort) (err error) {
	d := net.Dialer{Timeout: time.Second, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errorOf(raw.Control(func(fd uintptr) {
			err = setTag(int(fd), to.Addr().Is4())
		}), &err)
	}}
	return h.Do(func() error {
		c, err := d.Dial(network, to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte("hello\n")); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 100))
		return err
	})
}

func errorOf(a error, b *error) error {
	if a != nil {
		return a
	}
	return *b
}

func setTag(fd int, is4 bool) error {
	if is4 {
		return syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, syscall.IP_TOS, dscpAt)
	}
	return syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_TCLASS, dscpAt)
}

// describe prints observations, one a line, without times and numbers that differ between runs.
func describe(all []trace.Observation) string {
	var b strings.Builder
	for _, o := range all {
		dir := "→"
		if o.Reply {
			dir = "←"
		}
		fmt.Fprintf(&b, "%s %d %s ", o.Node, o.Pass, dir)
		switch {
		case o.Rule != nil:
			fmt.Fprintf(&b, "%s %d %s %s %s %s  %v > %v ttl %d %s [%s]\n", o.Rule.Hook, o.Rule.Priority, o.Rule.Place(), o.Rule.Kind, o.Rule.Verdict, o.Rule.Target,
				o.Packet.Src, o.Packet.Dst, o.Packet.TTL, o.Packet.Flags, o.Rule.Text)
		case o.Flow != nil:
			fmt.Fprintf(&b, "conntrack %s %v | %v %s\n", o.Flow.Event, o.Flow.Orig, o.Flow.Reply, o.Flow.State)
		case o.Drop != nil:
			fmt.Fprintf(&b, "dropped %s %s pod=%v in=%s %v > %v\n", o.Drop.Reason, o.Drop.Where, o.Drop.Pod, o.Packet.In, o.Packet.Src, o.Packet.Dst)
		case o.State != nil:
			text, _ := json.Marshal(o.State)
			fmt.Fprintf(&b, "state %s\n", text)
		default:
			fmt.Fprintf(&b, "%s\n", o.Note)
		}
	}
	return b.String()
}

const patience = 10 * time.Second

func addrPort(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// nft loads rules on a host, as another program.
func (c *cluster) nft(h *testnet.Host, rules string) {
	c.t.Helper()
	c.on(h, func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// tables returns the names of a host's tables.
func (c *cluster) tables(h *testnet.Host) string {
	c.t.Helper()
	var out []byte
	c.on(h, func() (err error) {
		out, err = exec.Command("nft", "list", "tables").Output()
		return err
	})
	return string(out)
}
