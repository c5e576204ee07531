package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kernel/sysctl"
)

// prepare makes the node deliver packets to virtual servers locally, and makes IPVS write its choices into conntrack.
//
// All virtual servers share one route. kube-proxy instead adds an address for each Service to kube-ipvs0, which the
// node could announce.
func (d *Datapath) prepare(ctx context.Context) error {
	for _, s := range [...][2]string{
		{"conntrack", "1"},
		{"conn_reuse_mode", "1"},           // a SYN from a used port begins a new connection
		{"expire_nodest_conn", "1"},        // a connection to a removed endpoint is scheduled again
		{"expire_quiescent_template", "1"}, // a client with affinity to a removed endpoint too
	} {
		if err := setSysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	if c := d.cfg; c.TCPTimeout+c.FinTimeout+c.UDPTimeout > 0 {
		seconds := func(t time.Duration) uint32 { return uint32(t / time.Second) }
		if err := d.genl.timeouts(ctx, seconds(c.TCPTimeout), seconds(c.FinTimeout), seconds(c.UDPTimeout)); err != nil {
			return err
		}
	}
	if there, err := routed(); err != nil || there {
		return err
	}
	return withRoutes(func(h *netlink.Handle, r *netlink.Route) error {
		err := h.RouteReplace(r)
		if err != nil && r.Family == netlink.FAMILY_V6 && !hasIPv6() {
			return nil
		}
		return err
	})
}

// setSysctl sets a parameter of IPVS in the thread's network namespace.
func setSysctl(name, value string) error {
	path := "/proc/sys/net/ipv4/vs/" + name
	if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) == value {
		return nil
	}
	if err := sysctl.WriteFile(path, value); err != nil {
		return fmt.Errorf("set net.ipv4.vs.%s: %w %s", name, err, sysctl.Advice)
	}
	return nil
}

func hasIPv6() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// unprepare removes the routes. The parameters stay, because another program may need them.
func (d *Datapath) unprepare() error {
	return withRoutes(func(h *netlink.Handle, r *netlink.Route) error {
		err := h.RouteDel(r)
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || err != nil && r.Family == netlink.FAMILY_V6 && !hasIPv6() {
			return nil
		}
		return err
	})
}

// routed reports whether the routes exist.
func routed() (bool, error) {
	missing := errors.New("missing")
	err := withRoutes(func(h *netlink.Handle, r *netlink.Route) error {
		found, err := h.RouteListFiltered(r.Family, r, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST|netlink.RT_FILTER_TYPE)
		if err == nil && len(found) == 0 && (r.Family == netlink.FAMILY_V4 || hasIPv6()) {
			return missing
		}
		return err
	})
	if errors.Is(err, missing) {
		return false, nil
	}
	return err == nil, err
}

// withRoutes calls f for the route of each family, in the thread's network namespace.
func withRoutes(f func(h *netlink.Handle, r *netlink.Route) error) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer h.Close()
	if err := h.SetSocketTimeout(fwnetlink.Limit); err != nil {
		return fmt.Errorf("set limit of netlink socket: %w", err)
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	for family, p := range map[int]netip.Prefix{netlink.FAMILY_V4: serverRange4, netlink.FAMILY_V6: serverRange6} {
		r := &netlink.Route{
			Family: family, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, LinkIndex: lo.Attrs().Index, Protocol: numbers.RouteProtocol,
			Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		}
		if family == netlink.FAMILY_V4 {
			r.Scope = netlink.SCOPE_HOST
		}
		if err := f(h, r); err != nil {
			return fmt.Errorf("local route %v: %w", p, err)
		}
	}
	return nil
}
