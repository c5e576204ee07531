package userspace_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestHostNetwork: an endpoint on the node's own address also sees the client, and its answers reach the client.
func TestHostNetwork(t *testing.T) {
	r := newRig(t, 1)
	at := netip.AddrPortFrom(nodePort.Addr(), 8080)
	for _, network := range []string{"tcp", "udp"} {
		r.node.Serve(network, at)
		proto := api.TCP
		if network == "udp" {
			proto = api.UDP
		}
		all := table(proto, at).Sorted()
		for _, f := range all {
			f.Internal.Masquerade, f.External.Masquerade = service.MasqueradeHairpin, service.MasqueradeHairpin
		}
		r.sync(service.NewTable(table(proto).Settings, all))
		for _, from := range []*testnet.Host{r.client, r.outside} {
			for _, to := range []netip.AddrPort{vip, nodePort} {
				if got := from.Ask(network, to, patience); got.At != at || got.Seen.Addr() != from.Addr(true) {
					t.Errorf("%s, %s to %v: %v, want that it sees %v", network, from.Name, to, got, from.Addr(true))
				}
			}
		}
		if got := r.node.Ask(network, vip, patience); got.At != at {
			t.Errorf("%s from the node: %v", network, got)
		}
	}
}

// TestLargeDatagram: the largest possible datagram.
func TestLargeDatagram(t *testing.T) {
	r := newRig(t, 1)
	want := noise(4, 65507)
	var pc net.PacketConn
	must(t, r.pods[0].Do(func() (err error) {
		var c net.ListenConfig
		pc, err = c.ListenPacket(t.Context(), "udp4", r.at(0).String())
		return err
	}))
	done := make(chan struct{})
	defer func() { _ = pc.Close(); <-done }()
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, from, err := pc.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			_, _ = pc.WriteTo(buf[:n], from)
		}
	}()
	r.sync(r.service(api.UDP, 0))
	var c net.Conn
	must(t, r.client.Do(func() (err error) {
		c, err = net.Dial("udp", vip.String())
		return err
	}))
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := c.Write(want)
	must(t, err)
	got := make([]byte, 1<<16)
	if n, err := c.Read(got); err != nil || !bytes.Equal(got[:n], want) {
		t.Errorf("got %d bytes of %d, error %v", n, len(want), err)
	}
}

// TestDrain: an endpoint without new connections keeps its existing ones.
func TestDrain(t *testing.T) {
	r := newRig(t, 2)
	r.pods[0].Serve("tcp", r.at(0))
	r.pods[1].Serve("tcp", r.at(1))
	r.sync(r.service(api.TCP, 0))
	c := r.connected(r.client, "tcp")
	r.sync(r.service(api.TCP, 1))
	for range 4 {
		if got := r.client.Ask("tcp", vip, patience); got.At != r.at(1) {
			t.Errorf("a new one: %v", got)
		}
	}
	if got := c.Ask(patience); got.At != r.at(0) {
		t.Errorf("the old one: %v", got)
	}
}

// TestPorts: two processes at once do not compete for the listeners' ports, and the newer process serves.
func TestPorts(t *testing.T) {
	r := newRig(t, 1)
	r.pods[0].Serve("tcp", r.at(0))
	r.sync(r.service(api.TCP, 0))
	first := r.dp
	defer first.Close()
	c := r.connected(r.client, "tcp")
	r.dp = open(t)
	r.sync(r.service(api.TCP, 0))
	if got := r.client.Ask("tcp", vip, patience); got.Outcome != testnet.Answered {
		t.Errorf("the second process: %v", got)
	}
	if got := c.Ask(patience); got.Outcome != testnet.Answered {
		t.Errorf("a connection of the first: %v", got)
	}
}

// TestProbe: Probe succeeds here. Without a requirement, it returns one line that names the requirement.
func TestProbe(t *testing.T) {
	r := newRig(t, 0)
	before := r.nft("list", "ruleset")
	must(t, r.node.Do(func() error { return r.dp.Probe(context.Background()) }))
	if after := r.nft("list", "ruleset"); after != before {
		t.Errorf("Probe left\n%s", after)
	}
}

// TestMayBind: without the right to listen on ports below 1024, Probe names the component that grants it.
func TestMayBind(t *testing.T) {
	r := newRig(t, 0)
	probe := func() error { return r.node.Do(func() error { return r.dp.Probe(context.Background()) }) }
	must(t, probe())
	refused := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&header, &caps[0])
		if err == nil {
			caps[0].Effective &^= 1 << unix.CAP_NET_BIND_SERVICE
			err = unix.Capset(&header, &caps[0])
		}
		if err == nil {
			err = probe()
		}
		refused <- err
	}()
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "deploy/components/userspace") {
		t.Errorf("without the right to listen: %v", err)
	}
}

// TestConfig: a mark with more or fewer than one bit is refused.
func TestConfig(t *testing.T) {
	if _, err := userspace.New(userspace.Config{Mark: 0x3}); err == nil {
		t.Error("a mark of two bits was taken")
	}
}

// TestCounts: the counters of connections and datagrams.
func TestCounts(t *testing.T) {
	r := newRig(t, 2)
	r.pods[0].Serve("tcp", r.at(0))
	r.sync(r.service(api.TCP, 0))
	const asked = 5
	for range asked {
		if got := r.client.Ask("tcp", vip, patience); got.Outcome != testnet.Answered {
			t.Fatal(got)
		}
	}
	name := r.service(api.TCP, 0).Sorted()[0].Service
	eventually(t, "the connections are counted with their bytes", func() bool {
		all, err := r.dp.Counts(context.Background())
		must(t, err)
		return all[name].Connections == asked && all[name].Bytes > asked*10 && all[name].Drops == 0
	})
}
