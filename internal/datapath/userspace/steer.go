package userspace

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// The kernel delivers packets with the proxy's mark locally. Each family has an ip rule, and one route in a table for
// this purpose.
const (
	routeTable   = numbers.RouteTableUserspace
	rulePriority = numbers.RulePriorityUserspace
	protocol     = numbers.RouteProtocol
)

func steerRule(family int, mark uint32) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table = family, rulePriority, routeTable
	r.Mark, r.Mask = mark, &mark
	r.Protocol = protocol
	return r
}

func steerRoute(family, lo int) *netlink.Route {
	all := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		all = netip.IPv6Unspecified()
	}
	return &netlink.Route{
		LinkIndex: lo, Table: routeTable, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Protocol: protocol,
		Dst: &net.IPNet{IP: all.AsSlice(), Mask: net.CIDRMask(0, all.BitLen())},
	}
}

// steered reports whether our rules and routes exist, in the thread's namespace, and no others.
func steered(mark uint32) (bool, error) {
	for _, family := range [...]int{unix.AF_INET, unix.AF_INET6} {
		rules, routes, err := steering(family)
		if err != nil {
			return false, err
		}
		if len(rules) != 1 || len(routes) != 1 || rules[0].Mark != mark || rules[0].Mask == nil || *rules[0].Mask != mark {
			return false, nil
		}
	}
	return true, nil
}

// steering returns our rules and routes.
func steering(family int) (rules []netlink.Rule, routes []netlink.Route, err error) {
	// A change interrupts a list: then the list is requested again.
	for range maxLists {
		rules, err = netlink.RuleListFiltered(family, &netlink.Rule{Priority: rulePriority, Table: routeTable}, netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_TABLE)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list ip rules: %w", err)
	}
	for range maxLists {
		routes, err = netlink.RouteListFiltered(family, &netlink.Route{Table: routeTable, Type: unix.RTN_LOCAL}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	return rules, routes, nil
}

const maxLists = 10

// steer adds the rules and routes, unless they exist. Rules with the mark of an older agent stay, because the kernel
// may still run the older agent's ruleset.
func steer(mark uint32) error {
	if there, err := steered(mark); err != nil || there {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	for _, family := range [...]int{unix.AF_INET, unix.AF_INET6} {
		if err := netlink.RouteReplace(steerRoute(family, lo.Attrs().Index)); err != nil {
			return fmt.Errorf("add local route to table %d: %w", routeTable, err)
		}
		if err := netlink.RuleAdd(steerRule(family, mark)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add ip rule: %w [needs a kernel with policy routing]", err)
		}
	}
	return nil
}

// steerOnly removes our rules and routes with another mark.
func steerOnly(mark uint32) error {
	return unsteer(
		func(r netlink.Rule) bool { return r.Mark == mark && r.Mask != nil && *r.Mask == mark },
		func(r netlink.Route) bool {
			if r.Dst == nil {
				return true
			}
			ones, _ := r.Dst.Mask.Size()
			return ones == 0
		},
	)
}

// unsteerAll removes all our rules and routes.
func unsteerAll() error {
	return unsteer(func(netlink.Rule) bool { return false }, func(netlink.Route) bool { return false })
}

// unsteer removes our rules and routes, except those to keep.
func unsteer(keepRule func(netlink.Rule) bool, keepRoute func(netlink.Route) bool) error {
	for _, family := range [...]int{unix.AF_INET, unix.AF_INET6} {
		rules, routes, err := steering(family)
		if err != nil {
			return err
		}
		for _, r := range slices.DeleteFunc(rules, keepRule) {
			r.Family = family
			if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("delete ip rule: %w", err)
			}
		}
		for _, r := range slices.DeleteFunc(routes, keepRoute) {
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("delete route of table %d: %w", routeTable, err)
			}
		}
	}
	return nil
}
