package testnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// Changes count the changes in a namespace, by the messages of the kernel to listeners: one for each rule, element, set
// and chain of nf_tables, each route and each ip rule.
type Changes struct {
	t   testing.TB
	fds []int
}

// groups has the multicast groups of each netlink protocol (linux/rtnetlink.h, linux/netfilter/nfnetlink.h).
var groups = map[int][]int{
	unix.NETLINK_ROUTE:     {unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE},
	unix.NETLINK_NETFILTER: {7}, // NFNLGRP_NFTABLES
}

// Changes counts changes from now until the test ends.
func (h *Host) Changes() *Changes {
	h.t.Helper()
	c := &Changes{t: h.t}
	h.net.must("listen to changes", h.Do(func() error {
		for protocol, all := range groups {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
			if err != nil {
				return err
			}
			h.t.Cleanup(func() { _ = unix.Close(fd) })
			c.fds = append(c.fds, fd)
			err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20), unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
			for _, g := range all {
				err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g))
			}
			if err != nil {
				return fmt.Errorf("subscribe: %w", err)
			}
		}
		return nil
	}))
	return c
}

// Count returns the number of changes since its last call. The kernel sends the message of a change before the call
// that made it returns.
func (c *Changes) Count() (n int) {
	c.t.Helper()
	buf := make([]byte, 1<<16)
	for _, fd := range c.fds {
		for {
			size, _, err := unix.Recvfrom(fd, buf, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				c.t.Fatalf("testnet: listen to changes: %v", err)
			}
			for b := buf[:size]; len(b) >= unix.NLMSG_HDRLEN; n++ {
				length := int(binary.NativeEndian.Uint32(b))
				b = b[min(max((length+3)&^3, unix.NLMSG_HDRLEN), len(b)):]
			}
		}
	}
	return n
}
