package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// patience is for what must come. It is long: a loaded machine is no failure.
const patience = 30 * time.Second

// TestMain lets the test binary be the plugin: libcni starts it under the
// plugin's name, as containerd does.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); name == PluginName || name == LoopbackName {
		os.Exit(Main(name, "test"))
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
	var file *os.File
	err := onOwnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &namespace{t: t, file: file}
	t.Cleanup(n.close)
	n.run("ip link set lo up")
	return n
}

func (n *namespace) close()       { n.file.Close() }
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

// run executes a command line inside and returns its output.
func (n *namespace) run(line string) string {
	n.t.Helper()
	out, err := n.try(line, "")
	if err != nil {
		n.t.Fatalf("%s: %v: %s", line, err, out)
	}
	return out
}

func (n *namespace) try(line, stdin string) (string, error) {
	var out []byte
	err := n.do(func() (err error) {
		cmd := exec.Command("sh", "-c", line)
		cmd.Stdin = strings.NewReader(stdin)
		out, err = cmd.CombinedOutput()
		return err
	})
	return string(out), err
}

func (n *namespace) nft(ruleset string) {
	n.t.Helper()
	if out, err := n.try("nft -f -", ruleset); err != nil {
		n.t.Fatalf("nft: %v: %s", err, out)
	}
}

func (n *namespace) sysctl(name, value string) {
	n.t.Helper()
	if err := n.do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }); err != nil {
		n.t.Fatal(err)
	}
}

// serve answers every TCP connection with the client's address.
func (n *namespace) serve(port int) {
	n.t.Helper()
	var listener net.Listener
	err := n.do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
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

// ask connects and returns the address that the server saw.
func (n *namespace) ask(addr netip.Addr, port uint16) (netip.Addr, error) {
	var answer string
	err := n.do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, port).String(), patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		buf := make([]byte, 64)
		size, err := conn.Read(buf)
		answer = string(buf[:size])
		return err
	})
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(answer)
}

// A node is a namespace with an uplink to an outside one, and a container
// runtime, which is libcni.
type node struct {
	*namespace
	outside  *namespace
	stateDir string
	runtime  *libcni.CNIConfig
}

// Addresses of the node and of the machine outside.
var (
	node4, outside4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	node6, outside6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
)

func newNode(t testing.TB) *node {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, PluginName)); err != nil {
		t.Fatal(err)
	}
	n := &node{
		namespace: newNamespace(t), outside: newNamespace(t), stateDir: filepath.Join(dir, "state"),
		runtime: libcni.NewCNIConfigWithCacheDir([]string{dir}, filepath.Join(dir, "cache"), pluginExec()),
	}
	n.sysctl("ipv4/ip_forward", "1")
	n.sysctl("ipv6/conf/all/forwarding", "1")
	n.run(fmt.Sprintf("ip link add uplink mtu 1400 type veth peer name uplink mtu 1400 netns %s", n.outside.path()))
	n.run("ip addr add 192.0.2.1/24 dev uplink; ip addr add 2001:db8::1/64 dev uplink nodad; ip link set uplink up")
	n.outside.run("ip addr add 192.0.2.2/24 dev uplink; ip addr add 2001:db8::2/64 dev uplink nodad; ip link set uplink up")
	n.run("ip route add default via 192.0.2.2; ip route add default via 2001:db8::2")
	n.outside.run("ip route add 10.0.0.0/8 via 192.0.2.1; ip route add fd00::/8 via 2001:db8::1")
	return n
}

// pluginExec is what libcni would make itself at the first call, without a lock.
func pluginExec() invoke.Exec {
	return &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: os.Stderr}}
}

// list is a network configuration as the agent writes it.
func (n *node) list(version, name string, cidrs ...string) *libcni.NetworkConfigList {
	n.t.Helper()
	var sets []string
	for _, cidr := range cidrs {
		sets = append(sets, fmt.Sprintf(`[{"subnet":%q}]`, cidr))
	}
	list, err := libcni.NetworkConfFromBytes([]byte(fmt.Sprintf(
		`{"cniVersion":%q,"name":%q,"plugins":[{"type":"fairway-cni","ipam":{"type":"host-local","dataDir":%q,"ranges":[%s]}}]}`,
		version, name, n.stateDir, strings.Join(sets, ","))))
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

// A pod is a namespace as a runtime prepares it.
type pod struct {
	*namespace
	rt    *libcni.RuntimeConf
	addrs []netip.Addr
}

var containers atomic.Int64

func newPod(t testing.TB) *pod {
	t.Helper()
	n := newNamespace(t)
	id := containers.Add(1)
	return &pod{namespace: n, rt: &libcni.RuntimeConf{
		ContainerID: fmt.Sprintf("c%063d", id), NetNS: n.path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", fmt.Sprintf("web-%d", id)}},
	}}
}

func (n *node) add(list *libcni.NetworkConfigList, p *pod) (*current.Result, error) {
	var result *current.Result
	err := n.do(func() error {
		raw, err := n.runtime.AddNetworkList(context.Background(), list, p.rt)
		if err != nil {
			return err
		}
		result, err = current.NewResultFromResult(raw)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.addrs = nil
	for _, ip := range result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		p.addrs = append(p.addrs, addr.Unmap())
	}
	return result, nil
}

func (n *node) mustAdd(list *libcni.NetworkConfigList, p *pod) *current.Result {
	n.t.Helper()
	result, err := n.add(list, p)
	if err != nil {
		n.t.Fatalf("ADD: %v", err)
	}
	return result
}

func (n *node) del(list *libcni.NetworkConfigList, p *pod) error {
	return n.do(func() error { return n.runtime.DelNetworkList(context.Background(), list, p.rt) })
}

func (n *node) check(list *libcni.NetworkConfigList, p *pod) error {
	return n.do(func() error { return n.runtime.CheckNetworkList(context.Background(), list, p.rt) })
}

// left is what the plugin has left behind: links, routes and addresses.
func (n *node) left() string {
	n.t.Helper()
	text := n.run("ip -br link show | grep '^f[wi]' || true; ip route show proto 70; ip -6 route show proto 70")
	files, _ := filepath.Glob(filepath.Join(n.stateDir, "*", "*[.:]*"))
	for _, file := range files {
		if base := filepath.Base(file); !strings.HasPrefix(base, "last_reserved_ip") {
			text += base + "\n"
		}
	}
	return text
}

// wantCode fails unless err is the plugin's error with this code and says want.
func wantCode(t testing.TB, err error, code uint, want string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a CNI error with code %d", err, code)
	}
	if e.Code != code || !strings.Contains(e.Msg, want) {
		t.Errorf("got code %d, %q; want code %d and %q", e.Code, e.Msg, code, want)
	}
}
