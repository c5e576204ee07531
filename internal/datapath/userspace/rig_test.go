package userspace_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// patience is the time limit for an expected event, on a machine that may be busy.
const patience = 20 * time.Second

// vip and nodePort are the addresses of the tests' Service.
var (
	vip      = netip.MustParseAddrPort("10.96.0.1:80")
	nodePort = netip.MustParseAddrPort("172.18.0.11:30080")
)

// A rig is a node with the datapath, a client pod on it, and pods for endpoints.
type rig struct {
	t       testing.TB
	net     *testnet.Net
	node    *testnet.Host
	client  *testnet.Host
	outside *testnet.Host
	pods    []*testnet.Host // from 10.244.1.5 on, with ports 8080
	dp      datapath.Datapath
}

func newRig(t testing.TB, endpoints int) *rig {
	t.Helper()
	n := testnet.New(t)
	n.SendEveryICMPError() // pods without a server refuse many datagrams
	r := &rig{t: t, net: n, node: n.Node("node-1"), outside: n.Outside, dp: open(t)}
	r.client = n.Pod(r.node, "client", netip.MustParseAddr("10.244.1.200"))
	for i := range endpoints {
		r.pods = append(r.pods, n.Pod(r.node, "pod", netip.AddrFrom4([4]byte{10, 244, 1, byte(5 + i)})))
	}
	must(t, n.Route(netip.MustParsePrefix("10.96.0.0/12"), r.node))
	t.Cleanup(func() { r.dp.Close() })
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) at(i int) netip.AddrPort { return netip.AddrPortFrom(r.pods[i].Addr(true), 8080) }

// service is a table of one Service with the given endpoints, at vip and nodePort.
func (r *rig) service(p api.Proto, which ...int) *service.Table {
	var all []netip.AddrPort
	for _, i := range which {
		all = append(all, r.at(i))
	}
	return table(p, all...)
}

func table(p api.Proto, endpoints ...netip.AddrPort) *service.Table {
	route := &service.Route{Masquerade: service.MasqueradeOffCluster}
	for _, a := range endpoints {
		route.Endpoints = append(route.Endpoints, service.Endpoint{Addr: a, Local: true})
	}
	var all []*service.Frontend
	for _, at := range []netip.AddrPort{vip, netip.AddrPortFrom(netip.IPv4Unspecified(), nodePort.Port())} {
		all = append(all, &service.Frontend{
			Addr: at, Proto: p, Internal: route, External: route,
			Service: api.PortName{Name: api.Name{Namespace: "default", Name: "web"}, Port: "http"},
		})
	}
	return service.NewTable(service.Settings{
		Pods:      []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		NodePorts: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")},
	}, all)
}

// roundRobin changes a table so that its endpoints take turns, and the test knows the next endpoint.
func roundRobin(t *service.Table) *service.Table {
	all := t.Sorted()
	for _, f := range all {
		f.Balance = service.RoundRobin
	}
	return service.NewTable(t.Settings, all)
}

func (r *rig) sync(t *service.Table) {
	r.t.Helper()
	must(r.t, r.node.Do(func() error {
		_, err := r.dp.Sync(context.Background(), t)
		return err
	}))
}

// check runs the agent's periodic check.
func (r *rig) check() {
	r.t.Helper()
	must(r.t, r.node.Do(func() error {
		drift, err := r.dp.Check(context.Background())
		if err == nil && drift.Any() {
			r.t.Errorf("Check says that another program changed something: %+v", drift)
		}
		return err
	}))
}

func (r *rig) drain() (done bool) {
	r.t.Helper()
	must(r.t, r.node.Do(func() (err error) {
		done, err = r.dp.Drain(context.Background())
		return err
	}))
	return done
}

// endFlows returns the number of ended flows. It must end no unconfirmed flow.
func (r *rig) endFlows(flows ...flow.Flow) int {
	r.t.Helper()
	for i := range flows {
		flows[i].Unconfirmed = true
	}
	unconfirmed, err := r.dp.EndFlows(context.Background(), flows)
	must(r.t, err)
	for i := range flows {
		flows[i].Unconfirmed = false
	}
	result, err := r.dp.EndFlows(context.Background(), flows)
	must(r.t, err)
	if unconfirmed.Ended != 0 || (len(unconfirmed.Unconfirmed) > 0) != (result.Ended > 0) || len(result.Unconfirmed) > 0 {
		r.t.Errorf("unconfirmed: %+v, then %+v", unconfirmed, result)
	}
	return result.Ended
}

// listen opens a listener in a pod.
func (r *rig) listen(i int) *net.TCPListener {
	r.t.Helper()
	var l net.Listener
	must(r.t, r.pods[i].Do(func() (err error) {
		var c net.ListenConfig
		l, err = c.Listen(context.Background(), "tcp4", r.at(i).String())
		return err
	}))
	r.t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

// serve runs f for each connection to a pod, until the test ends.
func (r *rig) serve(i int, f func(*net.TCPConn)) {
	l := r.listen(i)
	done := make(chan struct{})
	r.t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			f(c)
		}
	}()
}

// dial connects from a host over TCP.
func (r *rig) dial(from *testnet.Host, to netip.AddrPort) *net.TCPConn {
	r.t.Helper()
	var c net.Conn
	must(r.t, from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), patience)
		return err
	}))
	must(r.t, c.SetDeadline(time.Now().Add(patience)))
	r.t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// connected is a client with a connection that has reached its endpoint.
func (r *rig) connected(from *testnet.Host, network string) *testnet.Conn {
	r.t.Helper()
	c, err := from.Dial(network, vip, patience)
	must(r.t, err)
	r.t.Cleanup(c.Close)
	if got := c.Ask(patience); got.Outcome != testnet.Answered {
		r.t.Fatalf("%s: %v", network, got)
	}
	return c
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !is(); {
		if time.Now().After(until) {
			t.Fatalf("after %v still not: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
