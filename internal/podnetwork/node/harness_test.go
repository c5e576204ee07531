package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// patience is for what must come. It is long: a loaded machine is no failure.
const patience = 30 * time.Second

// TestMain lets the test binary be the plugin that Sync installs: a copy of it
// is started by libcni under the plugin's name.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); name == cni.PluginName || name == cni.LoopbackName {
		os.Exit(cni.Main(name, "test"))
	}
	if config := os.Getenv(speakerEnv); config != "" {
		runSpeaker(config)
		return
	}
	testnet.Main(m)
}

// A namespace is known only by an open file of this process: it has no name that
// could collide, and the kernel removes it, with everything inside, also when
// the test is killed.
type namespace struct {
	t    testing.TB
	file *os.File
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	testnet.NeedRoot(t, "makes network namespaces")
	n := &namespace{t: t}
	err := onOwnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		n.file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.file.Close() })
	n.run("ip link set lo up")
	return n
}

// noDAD makes the addresses of links that come later usable at once. The kernel takes up to two seconds to ask for
// duplicates of a link-local one, and has no source until then for its solicitations for packets that it
// forwards: with the third it gives up, and says that there is no route.
func (n *namespace) noDAD() {
	n.t.Helper()
	n.run("for i in all/accept_dad default/accept_dad default/dad_transmits; do echo 0 > /proc/sys/net/ipv6/conf/$i; done")
}

func (n *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// do runs fn on a thread inside the namespace; processes it starts and sockets
// it opens are inside too.
func (n *namespace) do(fn func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("setns: %w", err)
		}
		return fn()
	})
}

// onOwnThread runs fn on a thread that ends with it, so that no other goroutine
// can ever run in the wrong namespace.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- fn()
	}()
	return <-done
}

func (n *namespace) run(line string) string {
	n.t.Helper()
	var out []byte
	err := n.do(func() (err error) {
		out, err = exec.Command("sh", "-ec", line).CombinedOutput()
		return err
	})
	if err != nil {
		n.t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// serve answers every TCP connection with the client's address.
func (n *namespace) serve() {
	n.t.Helper()
	var listener net.Listener
	err := n.do(func() (err error) {
		listener, err = net.Listen("tcp", ":8080")
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
			conn.Close()
		}
	}()
}

// wantSource fails unless the server at addr answers and sees this source.
func (n *namespace) wantSource(what string, addr, want netip.Addr) {
	n.t.Helper()
	answer := make([]byte, 64)
	var size int
	err := n.do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, 8080).String(), patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		size, err = conn.Read(answer)
		return err
	})
	if err != nil {
		n.t.Errorf("%s: %v", what, err)
	} else if got := string(answer[:size]); got != want.String() {
		n.t.Errorf("%s: the server saw %s, want %s", what, got, want)
	}
}

// A machine is a node: a namespace on the fabric with its own CNI directories.
type machine struct {
	*namespace
	peer    plan.Peer
	config  Config
	network *Network
	log     *testnet.Log
	pods    int
}

// A cluster is machines and an outside namespace on one bridge.
type cluster struct {
	t        testing.TB
	fabric   *namespace
	outside  *namespace
	machines []*machine
}

var (
	outside4 = netip.MustParseAddr("192.0.2.99")
	outside6 = netip.MustParseAddr("2001:db8::99")
)

// newCluster makes count machines; machine i has the podCIDRs of cidrs(i).
func newCluster(t testing.TB, count int, cidrs func(i int) []string) *cluster {
	t.Helper()
	c := &cluster{t: t, fabric: newNamespace(t), outside: newNamespace(t)}
	// Nobody on the switch but the machines: what it solicits itself, late under load, would make
	// neighbour entries on them.
	c.fabric.run("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; ip link add br0 type bridge; ip link set br0 up")
	c.outside.run("echo 0 > /proc/sys/net/ipv6/conf/default/router_solicitations")
	c.plug(c.outside, "br0", "out", "192.0.2.99/24", "2001:db8::99/64")
	for i := 1; i <= count; i++ {
		m := c.newMachine(fmt.Sprintf("node-%d", i), "br0", fmt.Sprintf("192.0.2.%d/24", i), fmt.Sprintf("2001:db8::%d/64", i))
		m.run("ip route add default via 192.0.2.99; ip route add default via 2001:db8::99")
		m.peer.PodCIDRs = prefixes(cidrs(i)...)
	}
	return c
}

// newMachine adds a machine on a bridge of the fabric.
func (c *cluster) newMachine(name, bridge string, addrs ...string) *machine {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	dir := c.t.TempDir()
	m := &machine{namespace: newNamespace(c.t), log: &testnet.Log{}, peer: plan.Peer{Name: name}}
	c.plug(m.namespace, bridge, name, addrs...)
	for _, addr := range addrs {
		m.peer.Addrs = append(m.peer.Addrs, netip.MustParsePrefix(addr).Addr())
	}
	m.config = Config{
		Log:       slog.New(slog.NewTextHandler(m.log, nil)),
		CNIBinDir: filepath.Join(dir, "bin"), CNIConfDir: filepath.Join(dir, "net.d"), StateDir: filepath.Join(dir, "state"),
		Masquerade: true, Plugin: self, Fragments: DefaultFragments,
		PublishKey: func(_ context.Context, key plan.Key) error { m.peer.Key = key; return nil },
	}
	m.restart()
	c.t.Cleanup(func() { m.network.Close() })
	c.machines = append(c.machines, m)
	return m
}

// restart replaces the Network by one that has done nothing yet, with m.config.
func (m *machine) restart() {
	if m.network != nil {
		m.network.Close()
	}
	m.network = New(m.config)
}

// change replaces a node's Network by one of another way, with another clock; then everybody talks.
func (c *cluster) change(m *machine, way plan.Way, now func() time.Time, everybody func(when string)) {
	c.t.Helper()
	m.config.Way = way
	m.restart()
	m.network.now = now
	m.mustSync(c.peers())
	everybody(fmt.Sprintf("after %s has changed to %s", m.peer.Name, way))
}

func (c *cluster) plug(n *namespace, bridge, name string, addrs ...string) {
	c.t.Helper()
	n.noDAD()
	n.run(fmt.Sprintf("ip link add eth0 mtu 1450 type veth peer name %s mtu 1450 netns %s", name, c.fabric.path()))
	c.fabric.run(fmt.Sprintf("ip link set %s master %s; ip link set %s up", name, bridge, name))
	for _, addr := range addrs {
		nodad := ""
		if strings.Contains(addr, ":") {
			nodad = "nodad"
		}
		n.run(fmt.Sprintf("ip addr add %s dev eth0 %s", addr, nodad))
	}
	n.run("ip link set eth0 up")
}

func (c *cluster) peers() []plan.Peer {
	var peers []plan.Peer
	for _, m := range c.machines {
		peers = append(peers, m.peer)
	}
	return peers
}

// sync runs on every machine.
func (c *cluster) sync() {
	c.t.Helper()
	for _, m := range c.machines {
		m.mustSync(c.peers())
	}
}

func (m *machine) sync(peers []plan.Peer) error {
	return m.do(func() error { return m.network.Sync(context.Background(), m.peer, peers) })
}

func (m *machine) mustSync(peers []plan.Peer) {
	m.t.Helper()
	if err := m.sync(peers); err != nil {
		m.t.Fatalf("Sync on %s: %v", m.peer.Name, err)
	}
}

// A pod is what a runtime makes of the configuration that Sync wrote.
type pod struct {
	*namespace
	addrs []netip.Addr
}

func (m *machine) newPod() *pod {
	m.t.Helper()
	p := &pod{namespace: newNamespace(m.t)}
	list, err := libcni.ConfListFromFile(filepath.Join(m.config.CNIConfDir, configName))
	if err != nil {
		m.t.Fatal(err)
	}
	m.pods++
	runtimeConf := &libcni.RuntimeConf{ContainerID: fmt.Sprintf("%s-%d", m.peer.Name, m.pods), NetNS: p.path(), IfName: "eth0"}
	cniConfig := libcni.NewCNIConfigWithCacheDir([]string{m.config.CNIBinDir}, m.t.TempDir(), nil)
	err = m.do(func() error {
		if err := cniConfig.GetStatusNetworkList(context.Background(), list); err != nil {
			return fmt.Errorf("STATUS: %w", err)
		}
		raw, err := cniConfig.AddNetworkList(context.Background(), list, runtimeConf)
		if err != nil {
			return fmt.Errorf("ADD: %w", err)
		}
		result, err := current.NewResultFromResult(raw)
		if err != nil {
			return err
		}
		for _, ip := range result.IPs {
			addr, _ := netip.AddrFromSlice(ip.Address.IP)
			p.addrs = append(p.addrs, addr.Unmap())
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	p.serve()
	return p
}

// routes are the machine's routes of our protocol that are not to its own pods.
func (m *machine) routes() string {
	m.t.Helper()
	var lines []string
	usual := strings.NewReplacer(" scope link", "", " metric 1024", "", " pref medium", "")
	for _, line := range strings.Split(m.run("ip route show proto 70; ip -6 route show proto 70"), "\n") {
		if line = strings.TrimSpace(usual.Replace(line)); line != "" && !strings.Contains(line, " dev fw") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// generation is the number of the ruleset: it grows with each change.
func (n *namespace) generation() uint32 {
	n.t.Helper()
	var id uint32
	err := n.do(func() error {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC})
		msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
		if err != nil || len(msgs) != 1 {
			return fmt.Errorf("GETGEN: %d messages, %w", len(msgs), err)
		}
		attrs, err := nl.ParseRouteAttr(msgs[0][nl.SizeofNfgenmsg:])
		for _, a := range attrs {
			if a.Attr.Type == unix.NFTA_GEN_ID {
				id = binary.BigEndian.Uint32(a.Value)
			}
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return id
}

// eventually polls a condition with a deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// born is when the n-th node of a test was made.
func born(n int) time.Time { return time.Date(2026, 1, 1, n, 0, 0, 0, time.UTC) }

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

var bothCIDRs = prefixes("10.244.0.0/16", "fd00:10:244::/48")
