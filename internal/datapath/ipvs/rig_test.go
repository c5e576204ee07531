//go:build uml

package ipvs_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// patience is the time limit for an expected answer.
const patience = 30 * time.Second

// A rig is a node with the datapath, three endpoints, and a client pod with many addresses.
type rig struct {
	t      *testing.T
	net    *testnet.Net
	node   *testnet.Host
	client *testnet.Host
	addrs  []netip.Addr // of the client
	eps    []service.Endpoint
	dp     datapath.Datapath
}

func newRig(t *testing.T, dp datapath.Datapath) *rig {
	t.Helper()
	n := testnet.New(t)
	r := &rig{t: t, net: n, node: n.Node("node-1"), dp: dp}
	other := n.Node("node-2")
	for i := range 64 {
		r.addrs = append(r.addrs, netip.AddrFrom4([4]byte{10, 244, 1, byte(100 + i)}))
	}
	r.client = n.Pod(r.node, "client", r.addrs...)
	for i, on := range []*testnet.Host{r.node, other, other} {
		addr := netip.AddrFrom4([4]byte{10, 244, 2, byte(5 + i)})
		at := netip.AddrPortFrom(addr, 8080)
		pod := n.Pod(on, fmt.Sprintf("pod-%d", i), addr)
		pod.Serve("tcp", at)
		pod.Serve("udp", at)
		r.eps = append(r.eps, service.Endpoint{Addr: at, Local: on == r.node})
	}
	t.Cleanup(dp.Close)
	return r
}

// vip returns the nth Service address.
func vip(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(1 + n)}), 80)
}

// frontend returns a Service at vip(n).
func frontend(n int, p api.Proto, b service.Algorithm, eps ...service.Endpoint) *service.Frontend {
	route := &service.Route{Endpoints: eps}
	return &service.Frontend{
		Addr: vip(n), Proto: p, Internal: route, External: route, Balance: b,
		Service: api.PortName{Name: api.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", n)}},
	}
}

func (r *rig) sync(all ...*service.Frontend) {
	r.t.Helper()
	table := service.NewTable(service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, all)
	r.do(func() error {
		_, err := r.dp.Sync(r.t.Context(), table)
		return err
	})
}

// do runs f in the node, where it must succeed.
func (r *rig) do(f func() error) {
	r.t.Helper()
	if err := r.node.Do(f); err != nil {
		r.t.Fatal(err)
	}
}

// run runs a program in the node and returns its output.
func (r *rig) run(program string, args ...string) (out string) {
	r.t.Helper()
	r.do(func() error {
		b, err := exec.Command(program, args...).CombinedOutput()
		if out = string(b); err != nil {
			return fmt.Errorf("%s %v: %w: %s", program, args, err, b)
		}
		return nil
	})
	return out
}

// A conn is a TCP connection with the endpoint that answered.
type conn struct {
	*net.TCPConn
	in *bufio.Reader
	at netip.AddrPort
}

// dial connects from an address. If its port is 0, the kernel chooses one.
func (r *rig) dial(from, to netip.AddrPort) *conn {
	r.t.Helper()
	c := &conn{}
	err := r.client.Do(func() error {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), Timeout: patience, Control: reuse}
		nc, err := d.DialContext(r.t.Context(), "tcp", to.String())
		if err != nil {
			return err
		}
		c.TCPConn = nc.(*net.TCPConn)
		return nil
	})
	if err != nil {
		r.t.Fatalf("from %v: %v", from, err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	c.in = bufio.NewReader(c)
	c.at = r.answer(c)
	return c
}

// reuse lets several connections to different addresses share a port.
func reuse(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}), err)
}

// ask asks the endpoint for its address again.
func (r *rig) ask(c *conn) netip.AddrPort {
	r.t.Helper()
	if _, err := c.Write([]byte("who?\n")); err != nil {
		r.t.Fatal(err)
	}
	return r.answer(c)
}

func (r *rig) answer(c *conn) netip.AddrPort {
	r.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		r.t.Fatal(err)
	}
	line, err := c.in.ReadString('\n')
	if f := strings.Fields(line); err == nil && len(f) > 1 {
		return netip.MustParseAddrPort(f[1])
	}
	r.t.Fatalf("%v: answer %q, error %v", c.LocalAddr(), line, err)
	return netip.AddrPort{}
}

// end ends a connection as a finished client does, so the server closes too.
func (r *rig) end(c *conn) {
	r.t.Helper()
	if err := c.CloseWrite(); err != nil {
		r.t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c.in); err != nil {
		r.t.Fatal(err)
	}
	_ = c.Close()
}

// from returns the client's nth address, with any port.
func (r *rig) from(n int) netip.AddrPort { return netip.AddrPortFrom(r.addrs[n], 0) }
