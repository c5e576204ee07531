package observe

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/kernel/netns"
	"github.com/fairway-net/fairway/internal/path/trace"
)

// A pod is an endpoint on this node.
type pod struct {
	addr      netip.Addr
	link      string // to the pod; "" for the node itself
	file      string // of its namespace; "": not found
	overflows uint64 // when the watch began
}

// findPods returns the endpoints that are on this node: pods by the route to their address and the namespace behind the
// route's link, and the node's own addresses.
func (w *Watch) findPods() (all []pod) {
	var peers []netns.Peer
	for _, e := range w.order.Endpoints {
		if len(all) == maxAddresses {
			break
		}
		if slices.ContainsFunc(all, func(p pod) bool { return p.addr == e.Addr() }) {
			continue
		}
		r, ok := routeTo(e.Addr(), netip.Addr{}, "")
		switch {
		case !ok:
			continue
		case r.Kind == "local":
			all = append(all, pod{addr: e.Addr(), file: "/proc/thread-self/ns/net"})
		case r.Kind == "unicast" && !r.Via.IsValid() && hostRoute(r.Prefix, e.Addr()):
			if peers == nil {
				peers, _ = netns.Peers(w.files) // without the right there are none
			}
			all = append(all, pod{addr: e.Addr(), link: r.Link, file: behind(r.Link, peers)})
		case r.Kind == "unicast" && !r.Via.IsValid() && isBridge(r.Link):
			all = append(all, pod{addr: e.Addr(), link: r.Link}) // which port of the bridge is the pod's is not known
		}
	}
	for i := range all {
		_ = all[i].enter(func() { all[i].overflows = overflows() })
	}
	return all
}

// LinkTo returns the link of this node behind which an address is.
func LinkTo(addr netip.Addr) (string, error) {
	r, ok := routeTo(addr, netip.Addr{}, "")
	if !ok || r.Kind != "unicast" || r.Link == "lo" {
		return "", fmt.Errorf("find %v: no link of this node leads to it", addr)
	}
	return r.Link, nil
}

// PodNamespace returns a file of the network namespace of a pod on this node: the namespace behind the link to which the
// route to the pod leads.
func PodNamespace(addr netip.Addr, cfg Config) (file string, err error) {
	r, ok := routeTo(addr, netip.Addr{}, "")
	if !ok || r.Kind != "unicast" || r.Via.IsValid() || !hostRoute(r.Prefix, addr) {
		return "", fmt.Errorf("find pod %v: no link of this node leads to it [is the pod on another node?]", addr)
	}
	peers, err := netns.Peers(cfg.files())
	if err != nil {
		return "", err
	}
	if file = behind(r.Link, peers); file == "" {
		return "", fmt.Errorf("find the network namespace of pod %v behind %s: no process or file of it is visible "+
			"[run it on the node itself, or in a container with hostPID and CAP_SYS_ADMIN]", addr, r.Link)
	}
	return file, nil
}

func hostRoute(prefix string, a netip.Addr) bool {
	p, err := netip.ParsePrefix(prefix)
	return err == nil && p.IsSingleIP() && p.Addr() == a
}

func isBridge(name string) bool {
	l, err := netlink.LinkByName(name)
	return err == nil && l.Type() == "bridge"
}

// behind returns the file of the namespace in which the other end of a link is.
func behind(name string, peers []netns.Peer) string {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return ""
	}
	for _, p := range peers {
		if p.ID == l.Attrs().NetNsID {
			return p.File
		}
	}
	return ""
}

// enter calls f in the pod's namespace.
func (p pod) enter(f func()) error {
	if p.file == "" {
		return os.ErrNotExist
	}
	fd, err := vnetns.GetFromPath(p.file)
	if err != nil {
		return err
	}
	defer fd.Close()
	return netns.Do(fd, func() error { f(); return nil })
}

// state reads the sockets of the pod.
func (p pod) state(ctx context.Context, proto uint8) trace.EndpointState {
	s := trace.EndpointState{Addr: p.addr, Link: p.link}
	err := p.enter(func() {
		s.Listeners = listeners(ctx, proto)
		s.Overflows = overflows() - p.overflows
	})
	s.Entered = err == nil
	return s
}

// overflows returns how many connections full accept queues have dropped in the namespace of the thread.
func overflows() uint64 {
	b, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		return 0
	}
	var names []string
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) == 0 || f[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		if i := slices.Index(names, "ListenOverflows"); i > 0 && i < len(f) {
			n, _ := strconv.ParseUint(f[i], 10, 64) // 0 for another format
			return n
		}
	}
	return 0
}

// The request and the answer of sock_diag (linux/inet_diag.h).
const (
	diagByFamily   = 20
	diagRequest    = 56
	diagAnswer     = 72
	tcpListen      = 1 << 10
	udpUnconnected = 1 << 7 // TCP_CLOSE, the state of a UDP socket without a peer
	maxListeners   = 64
)

// listeners returns the sockets that take new connections or datagrams in the namespace of the thread.
func listeners(ctx context.Context, proto uint8) (all []trace.Listener) {
	c, err := fwnetlink.Dial(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil
	}
	defer c.Close()
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		request := make([]byte, diagRequest)
		request[0], request[1] = family, proto
		states := uint32(tcpListen)
		if proto == udp {
			states = udpUnconnected
		}
		binary.NativeEndian.PutUint32(request[4:], states)
		_, err := c.Ask(ctx, diagByFamily, unix.NLM_F_DUMP, request, func(b []byte) error {
			if l, ok := parseListener(b, proto); ok && len(all) < maxListeners && !slices.Contains(all, l) {
				all = append(all, l)
			}
			return nil
		})
		if err != nil {
			return all
		}
	}
	return all
}

// parseListener reads struct inet_diag_msg.
func parseListener(b []byte, proto uint8) (l trace.Listener, ok bool) {
	if len(b) < diagAnswer {
		return l, false
	}
	port := binary.BigEndian.Uint16(b[4:])
	var a netip.Addr
	if b[0] == unix.AF_INET {
		a = netip.AddrFrom4([4]byte(b[8:12]))
	} else {
		a = netip.AddrFrom16([16]byte(b[8:24])).Unmap()
	}
	l.Addr = netip.AddrPortFrom(a, port)
	if proto == tcp {
		l.Queue, l.Backlog = int(binary.NativeEndian.Uint32(b[56:])), int(binary.NativeEndian.Uint32(b[60:]))
	}
	return l, true
}

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

func now() time.Time { return time.Now() }
