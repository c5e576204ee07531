package testnet

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/netns"
)

// A Namespace is a network namespace: either made by a test, and as long-lived as the test, or made by another program,
// and open until the test ends.
type Namespace struct {
	Name string // for messages only
	t    testing.TB
	fd   vnetns.NsHandle
	link *netlink.Handle // works from any thread
	// clients counts the UDP and SCTP clients so far.
	clients atomic.Uint32
	sctp    sync.Mutex // held by the only SCTP client, see dialSCTP
	served  sync.Map   // the addresses of SCTP servers
	cgroup  string     // the directory of its cgroup; empty: the cgroup of the test
}

// NewNamespace makes a namespace with a loopback interface that is up, and with forwarding for both families. It fails
// the test if it cannot, and skips the test if the process is not root.
func NewNamespace(t testing.TB, name string) *Namespace {
	t.Helper()
	NeedRoot(t, "makes network namespaces")
	n, err := newNamespace(name)
	if err != nil {
		t.Fatalf("make network namespace %s: %v", name, err)
	}
	n.t = t
	t.Cleanup(n.close)
	return n
}

// OpenNamespace opens the namespace of another program by its file, for example /run/netns/NAME or /proc/PID/ns/net. It
// changes nothing in the namespace. It fails the test if it cannot.
func OpenNamespace(t testing.TB, name, file string) *Namespace {
	t.Helper()
	NeedRoot(t, "enters network namespaces")
	fd, err := vnetns.GetFromPath(file)
	if err != nil {
		t.Fatalf("open network namespace %s: %v", name, err)
	}
	n := &Namespace{Name: name, t: t, fd: fd}
	if n.link, err = netlink.NewHandleAt(fd, unix.NETLINK_ROUTE); err != nil {
		_ = fd.Close()
		t.Fatalf("open netlink socket in %s: %v", name, err)
	}
	t.Cleanup(n.close)
	return n
}

func newNamespace(name string) (*Namespace, error) {
	fd, err := unshare()
	if err != nil {
		return nil, err
	}
	n := &Namespace{Name: name, fd: fd}
	if n.link, err = netlink.NewHandleAt(fd, unix.NETLINK_ROUTE); err != nil {
		_ = fd.Close()
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := n.prepare(); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// unshare makes a namespace and returns its only reference.
func unshare() (fd vnetns.NsHandle, err error) {
	home, err := vnetns.Get()
	if err != nil {
		return vnetns.None(), fmt.Errorf("open own namespace: %w", err)
	}
	defer home.Close()
	err = netns.Do(home, func() (err error) {
		if fd, err = vnetns.New(); err != nil { // New also enters the namespace
			err = fmt.Errorf("unshare (the kernel may lack network namespaces): %w", err)
		}
		return err
	})
	return fd, err
}

func (n *Namespace) close() {
	n.link.Close()
	_ = n.fd.Close()
}

// Do runs f on a thread in the namespace. Sockets and programs that f opens stay in the namespace. Goroutines that f
// starts are not in it.
func (n *Namespace) Do(f func() error) error {
	if n.cgroup != "" {
		return n.doInCgroup(f)
	}
	return netns.Do(n.fd, f)
}

// Path returns a file by which other programs can enter the namespace while the test runs: nsenter --net=PATH.
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(n.fd)) }

// Sysctl sets a kernel parameter below /proc/sys/net, for example "ipv4/ip_forward".
func (n *Namespace) Sysctl(name, value string) error {
	return n.Do(func() error {
		// /proc/sys/net shows the namespace of the thread that opens it.
		_, err := sysctl.Sysctl("net/"+name, value)
		return err
	})
}

// prepare sets the parameters that every test's namespace needs.
func (n *Namespace) prepare() error {
	for _, s := range [...][2]string{
		{"ipv4/ip_forward", "1"},
		{"ipv6/conf/all/disable_ipv6", "0"},
		{"ipv6/conf/default/disable_ipv6", "0"},
		{"ipv6/conf/all/forwarding", "1"},
		// No duplicate address detection: addresses are usable at once.
		{"ipv6/conf/all/accept_dad", "0"},
		{"ipv6/conf/default/accept_dad", "0"},
		{"ipv6/conf/default/dad_transmits", "0"},
		// A new namespace may inherit the next parameters from the host.
		{"ipv4/conf/all/rp_filter", "0"},
		{"ipv4/conf/default/rp_filter", "0"},
		// The fabric forwards between ports of one bridge: it must not send
		// redirects that make nodes bypass it.
		{"ipv4/conf/all/send_redirects", "0"},
		{"ipv4/conf/default/send_redirects", "0"},
		{"ipv4/conf/all/accept_redirects", "0"},
		{"ipv4/conf/default/accept_redirects", "0"},
		{"ipv6/conf/default/accept_redirects", "0"},
	} {
		if err := n.Sysctl(s[0], s[1]); err != nil {
			return fmt.Errorf("set sysctl: %w", err)
		}
	}
	lo, err := n.link.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := n.link.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

// SendEveryICMPError ends the kernel's limits for the ICMP errors that the namespace sends. With the limits, as on a
// user's node, a client gets a few errors at once, and then one a second. A test that calls closed UDP ports more often
// needs every error. A refused TCP connection needs none, because the answer is a reset.
func (n *Namespace) SendEveryICMPError() error {
	for _, s := range [...][2]string{
		{"ipv4/icmp_ratelimit", "0"},
		{"ipv6/icmp/ratelimit", "0"},
		// The limit for all addresses must not apply either. The credit of a new namespace begins at 0: while one CPU
		// fills it, another CPU finds no credit and drops its error (Linux 6.18, icmp_global_allow).
		{"ipv4/icmp_ratemask", "0"},
		{"ipv6/icmp/ratemask", "2"}, // the types without a limit; it cannot be empty
	} {
		if err := n.Sysctl(s[0], s[1]); err != nil {
			return fmt.Errorf("end the limits of ICMP errors: %w", err)
		}
	}
	return nil
}

// Has reports whether one of the namespace's interfaces has the address.
func (n *Namespace) Has(addr netip.Addr) bool {
	all, err := n.link.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(all, func(a netlink.Addr) bool {
		have, ok := netip.AddrFromSlice(a.IP)
		return ok && have.Unmap() == addr
	})
}
