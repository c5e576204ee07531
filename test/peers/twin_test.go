package peers

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fairway-net/fairway/internal/testing/scenario"
	"github.com/fairway-net/fairway/internal/testing/testnet"
	"github.com/fairway-net/fairway/test/peers/apiserver"
	"github.com/fairway-net/fairway/test/peers/process"
	"github.com/fairway-net/fairway/test/peers/volley"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// A twin is a network with one of the two programs in its first node. Two twins differ only in the program.
type twin struct {
	name  string
	node  *testnet.Host
	hosts map[netip.Addr]*testnet.Host
	argv  []string
	proc  *process.Process
	leave func() // takes the API server out of the node
	// field sends packets from all hosts. stations has the hosts by name.
	field    *volley.Field
	stations map[string]*volley.Station
}

// binary returns the path of a program in bin/.
func binary(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v (make test-peers builds it)", err)
	}
	return path
}

// newTwin builds the network and starts the program in it, with the API server on its
// loopback interface.
func newTwin(t testing.TB, api *apiserver.Server, name string, argv ...string) *twin {
	t.Helper()
	n := testnet.New(t)
	n.SendEveryICMPError() // kube-proxy refuses TCP by ICMP too
	w := &scenario.World
	tw := &twin{name: name, node: n.Node("node-1"), hosts: map[netip.Addr]*testnet.Host{}}
	peer := n.Node("node-2")
	tw.node.AddAddr(w.Extra.V4)
	tw.node.AddAddr(w.Extra.V6)
	all := []*testnet.Host{
		tw.node, peer, n.Outside,
		n.Pod(tw.node, "pod", w.Pod.V4, w.Pod.V6), n.Pod(peer, "pod-remote", w.PodRemote.V4, w.PodRemote.V6),
	}
	for i := range pods {
		on := peer
		four, node := scenario.PodAddr(i, true)
		six, _ := scenario.PodAddr(i, false)
		if node == "node-1" {
			on = tw.node
		}
		all = append(all, n.Pod(on, fmt.Sprintf("pod-%d", i), four, six))
	}
	for _, h := range all {
		for _, a := range h.Addrs {
			tw.hosts[a] = h
		}
	}
	for i := range pods + 2 {
		tw.serve(i)
	}
	for _, p := range w.Routed {
		if err := n.Route(p, tw.node); err != nil {
			t.Fatal(err)
		}
	}
	tw.join(t, all)
	tw.argv = argv
	tw.listen(t, api)
	t.Cleanup(func() { tw.leave() })
	tw.start(t)
	t.Cleanup(func() { _ = tw.proc.Stop() })
	return tw
}

// start starts the program, also after it has ended.
func (tw *twin) start(t testing.TB) {
	t.Helper()
	var err error
	if tw.proc, err = process.Start(tw.node.Do, tw.name, tw.argv...); err != nil {
		t.Fatal(err)
	}
}

// join lets all hosts send and receive.
func (tw *twin) join(t testing.TB, all []*testnet.Host) {
	t.Helper()
	var err error
	if tw.field, err = volley.New(uint16(targets["sig"][0]), uint16(targets["sig"][1])); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tw.field.Close)
	tw.stations = map[string]*volley.Station{}
	for _, h := range all {
		if tw.stations[h.Name], err = tw.field.Join(h.Name, h.Do); err != nil {
			t.Fatal(err)
		}
	}
}

// serve answers on all possible ports of endpoint i.
func (tw *twin) serve(i int) {
	for _, is4 := range []bool{true, false} {
		addr, _ := endpointAddr(i, is4)
		done := map[string]bool{}
		for _, p := range servicePorts {
			network := map[string]string{"TCP": "tcp", "UDP": "udp"}[string(p.Protocol)]
			for _, port := range targets[p.Name] {
				at := netip.AddrPortFrom(addr, uint16(port))
				if network != "" && !done[network+at.String()] {
					done[network+at.String()] = true
					tw.hosts[addr].Serve(network, at)
				}
			}
		}
	}
}

const apiPort = "127.0.0.1:6443"

// listen makes the API server answer inside the node.
func (tw *twin) listen(t testing.TB, api *apiserver.Server) {
	t.Helper()
	err := tw.node.Do(func() error {
		l, err := net.Listen("tcp", apiPort)
		if err == nil {
			tw.leave = sync.OnceFunc(api.Serve(l))
		}
		return err
	})
	if err != nil {
		t.Fatalf("listen in %s's node: %v", tw.name, err)
	}
}

// forget deletes the node's connections. Otherwise a new client with an old client's port would get the old client's
// endpoint.
func (tw *twin) forget() error {
	return tw.node.Do(func() error {
		return netlink.ConntrackTableFlush(netlink.ConntrackTable)
	})
}

// get asks a server on the node's loopback interface; "" if there is none.
func (tw *twin) get(portAndPath string) string {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, to string) (conn net.Conn, err error) {
			err = tw.node.Do(func() error {
				conn, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, to)
				return err
			})
			return conn, err
		},
	}}
	resp, err := client.Get("http://127.0.0.1:" + portAndPath)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return string(body)
}
