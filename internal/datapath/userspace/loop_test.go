package userspace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// maxHops is the initial hop limit of clients.
const maxHops = 64

// A loop is two nodes with the datapath. Their Services' endpoints are NodePorts of the other node.
type loop struct {
	*testnet.Net
	nodes  [2]*testnet.Host
	dps    [2]datapath.Datapath
	client *testnet.Host // a pod on the first node
}

// looping are the NodePorts of a loop. Each has all NodePorts of the other node as its endpoints.
var looping = []uint16{30081, 30082}

func newLoop(t *testing.T, p api.Proto, masquerade service.Masquerade) *loop {
	t.Helper()
	l := &loop{Net: testnet.New(t)}
	for i := range l.nodes {
		l.nodes[i], l.dps[i] = l.Node(fmt.Sprintf("node-%d", i+1)), open(t)
		t.Cleanup(l.dps[i].Close)
	}
	l.client = l.Pod(l.nodes[0], "client", netip.MustParseAddr("10.244.1.200"), netip.MustParseAddr("fd00:10:244:1::200"))
	for i := range l.nodes {
		must(t, l.nodes[i].Do(func() error {
			_, err := l.dps[i].Sync(context.Background(), l.table(i, p, masquerade))
			return err
		}))
	}
	return l
}

// table returns a node's table: the Services in a loop, and one Service without a loop.
func (l *loop) table(i int, p api.Proto, masquerade service.Masquerade) *service.Table {
	var all []*service.Frontend
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		other := l.nodes[1-i].Addr(any.Is4())
		route := &service.Route{Masquerade: masquerade}
		for _, port := range looping {
			route.Endpoints = append(route.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(other, port)})
		}
		for _, port := range looping {
			all = append(all, &service.Frontend{
				Addr: netip.AddrPortFrom(any, port), Proto: p, Internal: route, External: route, Balance: service.RoundRobin,
				Service: api.PortName{Name: api.Name{Namespace: "evil", Name: "loop"}, Port: fmt.Sprint(port)},
			})
		}
	}
	honest := &service.Route{Masquerade: service.MasqueradeAll, Endpoints: []service.Endpoint{{Addr: netip.AddrPortFrom(l.client.Addr(true), 8080)}}}
	all = append(all, &service.Frontend{
		Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), nodePort.Port()), Proto: p, Internal: honest, External: honest,
		Service: api.PortName{Name: api.Name{Namespace: "default", Name: "web"}},
	})
	return service.NewTable(service.Settings{
		Pods:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
	}, all)
}

// carried returns the sum of the counts of the looping Services on both nodes.
func (l *loop) carried(t *testing.T) (sum datapath.Count) {
	t.Helper()
	for _, dp := range l.dps {
		all, err := dp.Counts(context.Background())
		must(t, err)
		for name, n := range all {
			if name.Namespace == "evil" {
				sum.Connections, sum.Bytes, sum.Drops = sum.Connections+n.Connections, sum.Bytes+n.Bytes, sum.Drops+n.Drops
			}
		}
	}
	return sum
}

// open opens a connection to the loop from a host, and sends a word.
func (l *loop) open(t *testing.T, from *testnet.Host, network string, is4 bool) net.Conn {
	t.Helper()
	var c net.Conn
	must(t, from.Do(func() (err error) {
		c, err = net.DialTimeout(network, netip.AddrPortFrom(l.nodes[0].Addr(is4), looping[0]).String(), patience)
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := c.Write([]byte("word"))
	must(t, err)
	return c
}

// TestProxyLoop: Services have each other's NodePorts as endpoints. They carry a connection or a datagram as often as
// its hop limit allows, as routers in a loop do. They do not repeat this for each endpoint that they could try. Then
// the client gets an error. Other Services continue meanwhile.
func TestProxyLoop(t *testing.T) {
	for _, is4 := range []bool{true, false} {
		t.Run(fmt.Sprintf("tcp ipv4=%v", is4), func(t *testing.T) {
			l := newLoop(t, api.TCP, service.MasqueradeAll)
			if !is4 { // the kernel forgets the SYN
				for _, n := range l.nodes {
					must(t, n.Sysctl("ipv4/tcp_syncookies", "2"))
				}
			}
			l.client.Serve("tcp", netip.AddrPortFrom(l.client.Addr(true), 8080))
			c := l.open(t, l.Outside, "tcp", is4)
			if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the client is not told")
			}
			if got := l.Outside.Ask("tcp", netip.AddrPortFrom(l.nodes[0].Addr(true), nodePort.Port()), patience); got.Outcome != testnet.Answered {
				t.Errorf("another Service: %v", got)
			}
			if n := l.carried(t); n.Connections > maxHops || n.Connections < maxHops/4 || n.Drops == 0 {
				t.Errorf("one connection became %d, and %d were dropped", n.Connections, n.Drops)
			}
		})
		t.Run(fmt.Sprintf("udp ipv4=%v", is4), func(t *testing.T) {
			l := newLoop(t, api.UDP, service.MasqueradeAll)
			l.open(t, l.Outside, "udp", is4)
			eventually(t, "the loop ends", func() bool { n := l.carried(t); return n.Drops > 0 || n.Connections > maxHops })
			if n := l.carried(t); n.Connections > maxHops || n.Connections < maxHops/4 || n.Drops != 1 {
				t.Errorf("one datagram became %d flows, and %d were dropped", n.Connections, n.Drops)
			}
		})
		t.Run(fmt.Sprintf("udp with its source ipv4=%v", is4), func(t *testing.T) {
			l := newLoop(t, api.UDP, service.MasqueradeHairpin)
			l.open(t, l.client, "udp", is4)
			eventually(t, "the loop ends", func() bool { n := l.carried(t); return n.Drops > 0 || n.Bytes > maxHops*4 })
			if n := l.carried(t); n.Bytes > maxHops*4 || n.Bytes < maxHops || n.Drops != 1 {
				t.Errorf("one datagram went %d times, and %d were dropped", n.Bytes/4, n.Drops)
			}
		})
	}
}
