package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	plugins "github.com/containernetworking/plugins/pkg/utils/sysctl"

	"github.com/fairway-net/fairway/internal/kernel/sysctl"
)

const (
	forward4 = "ipv4/ip_forward"
	forward6 = "ipv6/conf/all/forwarding"
)

// enableForwarding makes the machine a router for the address families of its pods.
//
// Reverse path filtering stays as the administrator has set it. Both strict and loose let the packets pass, because a
// pod's packets and the answers take the same link: the peer's, or the pod's own.
func enableForwarding(own []netip.Prefix, table *routingTable) error {
	var failed error
	if slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		failed = setSysctl(forward4, "1")
	}
	if !slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		return failed
	}
	if value, err := readSysctl(forward6); err == nil && value != "1" {
		// A router ignores router advertisements unless accept_ra is 2. Without it the node would lose its default
		// route.
		for index := range table.learnedRA {
			failed = errors.Join(failed, keepAdvertisements(index))
		}
	}
	return errors.Join(failed, setSysctl(forward6, "1"))
}

func keepAdvertisements(index int) error {
	link, err := net.InterfaceByIndex(index)
	if err != nil {
		return fmt.Errorf("find the link of the default route: %w", err)
	}
	name := "ipv6/conf/" + link.Name + "/accept_ra"
	if value, err := readSysctl(name); err != nil || value != "1" {
		return err // 0: a program listens to the advertisements, not the kernel
	}
	return setSysctl(name, "2")
}

// setSysctl writes only differences, because a write of ip_forward resets other settings.
func setSysctl(name, value string) error {
	if now, err := readSysctl(name); err != nil || now == value {
		return err
	}
	if err := sysctl.WriteFile("/proc/sys/net/"+name, value); err != nil {
		return fmt.Errorf("set sysctl: %w %s", err, sysctl.Advice)
	}
	return nil
}

// readSysctl reads with the library. For writes there is sysctl.WriteFile, which also works in an unprivileged
// container.
func readSysctl(name string) (string, error) {
	value, err := plugins.Sysctl("net/" + name)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w [does the kernel have this address family?]", err)
	}
	return value, nil
}
