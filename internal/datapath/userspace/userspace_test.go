package userspace_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/flow"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestDeadEndpoint: one of three endpoints is dead, in different ways. No request out of a thousand fails.
func TestDeadEndpoint(t *testing.T) {
	for _, c := range []struct {
		death    string
		requests int
		die      func(*rig)
	}{
		{"refuses", 1000, func(*rig) {}},
		{"resets before its first byte", 1000, func(r *rig) {
			r.serve(0, func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() })
		}},
		// Each third request waits a second.
		{"is silent", 9, func(r *rig) {
			must(t, r.pods[0].Do(func() error {
				return exec.Command("iptables", "-I", "INPUT", "-p", "tcp", "-j", "DROP").Run()
			}))
		}},
	} {
		t.Run(c.death, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3)
			c.die(r)
			for i := 1; i < 3; i++ {
				r.pods[i].Serve("tcp", r.at(i))
			}
			r.sync(roundRobin(r.service(api.TCP, 0, 1, 2)))
			for i := range c.requests {
				if got := r.client.Ask("tcp", vip, patience); got.Outcome != testnet.Answered {
					t.Fatalf("request %d: %v", i, got)
				}
			}
		})
	}
}

// TestReplay: an endpoint that resets after the request and before any answer is also replaced. The next endpoint gets
// the same request.
func TestReplay(t *testing.T) {
	r := newRig(t, 2)
	request := noise(3, 10_000)
	r.serve(0, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 100))
		_ = c.SetLinger(0)
		_ = c.Close()
	})
	r.serve(1, func(c *net.TCPConn) {
		defer c.Close()
		got := make([]byte, len(request))
		if _, err := io.ReadFull(c, got); err == nil {
			sum := sha256.Sum256(got)
			_, _ = c.Write(sum[:])
		}
	})
	r.sync(roundRobin(r.service(api.TCP, 0, 1)))
	want := sha256.Sum256(request)
	for i := range 300 {
		c := r.dial(r.client, vip)
		_, err := c.Write(request)
		must(t, err)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want[:]) {
			t.Fatalf("request %d: %x, error %v", i, got, err)
		}
		_ = c.Close()
	}
}

// TestDeadUDP is TestDeadEndpoint for the first datagram of a flow.
func TestDeadUDP(t *testing.T) {
	r := newRig(t, 3)
	r.pods[2].Serve("udp", r.at(2))
	r.sync(roundRobin(r.service(api.UDP, 0, 1, 2)))
	for i := range 100 {
		if got := r.client.Ask("udp", vip, patience); got.Outcome != testnet.Answered {
			t.Fatalf("request %d: %v", i, got)
		}
	}
}

// TestAllDead: the client gets an error.
func TestAllDead(t *testing.T) {
	r := newRig(t, 2)
	six := netip.MustParseAddrPort("[fd00:10:96::1]:80")
	must(t, r.net.Route(netip.MustParsePrefix("fd00:10:96::/108"), r.node))
	route := &service.Route{Endpoints: []service.Endpoint{{Addr: netip.AddrPortFrom(r.node.Addr(false), 9)}}, Masquerade: service.MasqueradeAll}
	udp := r.service(api.UDP, 0, 1)
	r.sync(service.NewTable(udp.Settings, append(udp.Sorted(), &service.Frontend{
		Addr: six, Proto: api.UDP, Internal: route, External: route,
		Service: api.PortName{Name: api.Name{Namespace: "default", Name: "six"}},
	})))
	for _, from := range []*testnet.Host{r.client, r.node, r.outside} {
		for _, to := range []netip.AddrPort{vip, nodePort, six} {
			if from == r.client && to == six {
				continue // the host has no address of that family
			}
			if got := from.Ask("udp", to, patience); got.Outcome != testnet.Refused {
				t.Errorf("%s to %v: %v, want refused", from.Name, to, got)
			}
		}
	}
	r.sync(roundRobin(r.service(api.TCP, 0, 1)))
	// The reset may arrive before the client knows that it is connected.
	if got := r.client.Ask("tcp", vip, patience); !errors.Is(got.Err, unix.ECONNRESET) {
		t.Errorf("%v, want a reset", got)
	}
}

// TestStream: many bytes go both ways, and each end closes its direction by itself.
func TestStream(t *testing.T) {
	r := newRig(t, 1)
	up, down := noise(1, 8<<20), noise(2, 8<<20)
	heard := make(chan []byte, 1)
	r.serve(0, func(c *net.TCPConn) {
		defer c.Close()
		got, err := io.ReadAll(c) // until the client closes its direction
		if err != nil {
			t.Errorf("endpoint reads: %v", err)
		}
		heard <- got
		if _, err := c.Write(down); err != nil {
			t.Errorf("endpoint writes: %v", err)
		}
	})
	r.sync(r.service(api.TCP, 0))
	for _, from := range []*testnet.Host{r.client, r.node, r.outside} {
		c := r.dial(from, vip)
		_, err := c.Write(up)
		must(t, err)
		must(t, c.CloseWrite())
		got, err := io.ReadAll(c)
		if err != nil || sha256.Sum256(got) != sha256.Sum256(down) {
			t.Errorf("%s got %d bytes of %d, error %v", from.Name, len(got), len(down), err)
		}
		if got := <-heard; !bytes.Equal(got, up) {
			t.Errorf("the endpoint heard %d bytes of %d from %s", len(got), len(up), from.Name)
		}
		_ = c.Close()
	}
}

// noise returns the same bytes in each run.
func noise(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// TestBackPressure: if one end does not read, the proxy stops reading from the other end. The other end can then send
// only as much as the buffers hold.
func TestBackPressure(t *testing.T) {
	r := newRig(t, 1)
	said := make(chan int, 1)
	r.serve(0, func(c *net.TCPConn) {
		defer c.Close()
		n, piece := 0, make([]byte, 1<<20)
		for n < 1<<30 {
			_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
			w, err := c.Write(piece)
			n += w
			if err != nil {
				break
			}
		}
		said <- n
	})
	r.sync(r.service(api.TCP, 0))
	r.dial(r.client, vip)
	if n := <-said; n > 64<<20 {
		t.Errorf("the endpoint could say %d bytes to a client that reads nothing", n)
	}
}

// TestReset: a reset is passed on, both ways.
func TestReset(t *testing.T) {
	r := newRig(t, 1)
	ends := make(chan *net.TCPConn, 1)
	r.serve(0, func(c *net.TCPConn) { ends <- c })
	r.sync(r.service(api.TCP, 0))
	talk := func() (client, endpoint *net.TCPConn) {
		client = r.dial(r.client, vip)
		endpoint = <-ends
		must(t, endpoint.SetDeadline(time.Now().Add(patience)))
		_, err := endpoint.Write([]byte("x"))
		must(t, err)
		_, err = io.ReadFull(client, make([]byte, 1))
		must(t, err)
		return client, endpoint
	}
	for _, first := range []string{"client", "endpoint"} {
		one, other := talk()
		if first == "endpoint" {
			one, other = other, one
		}
		_ = one.SetLinger(0)
		_ = one.Close()
		if _, err := other.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s reset, the other end read %v", first, err)
		}
		_ = other.Close()
	}
}

// TestEndFlows: connections and flows to an endpoint that is gone end, and others continue.
func TestEndFlows(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		proto := api.TCP
		if network == "udp" {
			proto = api.UDP
		}
		r := newRig(t, 2)
		r.pods[0].Serve(network, r.at(0))
		r.pods[1].Serve(network, r.at(1))
		r.sync(roundRobin(r.service(proto, 0, 1)))
		conns := map[netip.AddrPort]*testnet.Conn{}
		for range 2 {
			c, err := r.client.Dial(network, nodePort, patience)
			must(t, err)
			defer c.Close()
			conns[c.Ask(patience).At] = c
		}
		if len(conns) != 2 {
			t.Fatalf("%s: round robin gave two clients %v", network, conns)
		}
		any := netip.AddrPortFrom(netip.IPv4Unspecified(), nodePort.Port())
		if n := r.endFlows(flow.Flow{Proto: proto, Frontend: vip, Endpoint: r.at(0)}); n != 0 {
			t.Errorf("%s: ended %d of a frontend without flows", network, n)
		}
		if n := r.endFlows(flow.Flow{Proto: proto, Frontend: any, Endpoint: r.at(0), OnlyUnserved: true}); n != 0 {
			t.Errorf("%s: ended %d on an address that NodePorts are served on", network, n)
		}
		if n := r.endFlows(flow.Flow{Proto: proto, Frontend: any, Endpoint: r.at(0)}); n != 1 {
			t.Errorf("%s: ended %d, want 1", network, n)
		}
		r.sync(r.service(proto, 1))
		if got := conns[r.at(1)].Ask(patience); got.At != r.at(1) {
			t.Errorf("%s: the other is %v", network, got)
		}
		got := conns[r.at(0)].Ask(patience)
		if network == "tcp" && got.Outcome != testnet.Failed || network == "udp" && got.At != r.at(1) {
			t.Errorf("%s: the one that was ended is %v", network, got)
		}
	}
}

// TestNodePortGoes: when a NodePort's address is no longer served, the node itself refuses clients, including those
// with a flow.
func TestNodePortGoes(t *testing.T) {
	r := newRig(t, 1)
	r.pods[0].Serve("udp", r.at(0))
	with := r.service(api.UDP, 0)
	r.sync(with)
	c, err := r.outside.Dial("udp", nodePort, patience)
	must(t, err)
	defer c.Close()
	if got := c.Ask(patience); got.Outcome != testnet.Answered {
		t.Fatal(got)
	}
	settings := with.Settings
	settings.NodePorts = []netip.Prefix{netip.MustParsePrefix("172.18.0.99/32")}
	r.sync(service.NewTable(settings, with.Sorted()))
	eventually(t, "a client that had a flow is refused", func() bool { return c.Ask(testnet.Patience).Outcome == testnet.Refused })
	if got := r.outside.Ask("udp", nodePort, patience); got.Outcome != testnet.Refused {
		t.Errorf("another client: %v", got)
	}
}

// TestFrontendGoes: an established connection outlives its frontend, whatever its client.
func TestFrontendGoes(t *testing.T) {
	r := newRig(t, 1)
	r.pods[0].Serve("tcp", r.at(0))
	r.sync(r.service(api.TCP, 0))
	var conns []*testnet.Conn
	for _, from := range []*testnet.Host{r.client, r.node, r.outside} {
		conns = append(conns, r.connected(from, "tcp"))
	}
	r.sync(service.NewTable(r.service(api.TCP, 0).Settings, nil))
	for i, c := range conns {
		if got := c.Ask(patience); got.Outcome != testnet.Answered {
			t.Errorf("connection %d: %v", i, got)
		}
		c.Close()
	}
	eventually(t, "the kernel forgets the orphaned connections", func() bool {
		r.check()
		return !strings.Contains(r.nft("list", "set", "inet", "fairway-userspace", "orphaned-connections4"), "elements")
	})
}

func (r *rig) nft(args ...string) string {
	r.t.Helper()
	var out []byte
	must(r.t, r.node.Do(func() (err error) {
		out, err = exec.Command("nft", args...).CombinedOutput()
		return err
	}))
	return string(out)
}

// TestRelease: after a release, the proxy takes no new clients, and existing connections stay. All traces vanish with
// the last connection.
func TestRelease(t *testing.T) {
	r := newRig(t, 1)
	before := r.nft("list", "ruleset")
	r.pods[0].Serve("tcp", r.at(0))
	r.pods[0].Serve("udp", r.at(0))
	both := append(r.service(api.TCP, 0).Sorted(), r.service(api.UDP, 0).Sorted()...)
	r.sync(service.NewTable(r.service(api.TCP, 0).Settings, both))
	var conns []*testnet.Conn
	for _, from := range []*testnet.Host{r.client, r.node, r.outside} {
		for _, network := range []string{"tcp", "udp"} {
			conns = append(conns, r.connected(from, network))
		}
	}
	for range 3 {
		if r.drain() {
			t.Fatal("released while there are connections")
		}
		for i, c := range conns {
			if got := c.Ask(patience); got.Outcome != testnet.Answered {
				t.Errorf("connection %d: %v", i, got)
			}
		}
	}
	if got := r.client.Ask("tcp", nodePort, patience); got.Outcome != testnet.Refused {
		t.Errorf("a new client: %v, want the node's refusal", got)
	}
	for _, c := range conns {
		c.Close()
	}
	// A flow ends only by silence.
	any := netip.AddrPortFrom(netip.IPv4Unspecified(), nodePort.Port())
	r.endFlows(flow.Flow{Proto: api.UDP, Frontend: vip, Endpoint: r.at(0)}, flow.Flow{Proto: api.UDP, Frontend: any, Endpoint: r.at(0)})
	eventually(t, "the release is done", r.drain)
	if after := r.nft("list", "ruleset"); after != before {
		t.Errorf("it left\n%s", after)
	}
	if !r.drain() {
		t.Error("a second release is not done")
	}
}
