package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
)

// watchNetworks calls changed when the kernel adds a route to a network of a link, until ctx ends. A link that comes up
// again has lost all other routes, including the routes to other nodes' pods. The next resync finds missed changes. The
// socket belongs to the network namespace of the calling thread. wait returns when the watch has ended.
func watchNetworks(ctx context.Context, changed func()) (wait func(), err error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE})
	if err != nil {
		return func() {}, fmt.Errorf("watch the node's networks: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	var reading sync.WaitGroup
	reading.Go(func() {
		defer conn.Close()
		defer stop()
		for ctx.Err() == nil {
			messages, err := conn.Receive()
			switch {
			case errors.Is(err, unix.ENOBUFS): // messages were lost, maybe one about a network
				changed()
			case err != nil:
				return
			}
			for _, m := range messages {
				if m.Header.Type == unix.RTM_NEWROUTE && ofNetwork(m.Data) {
					changed()
				}
			}
		}
	})
	return reading.Wait, nil
}

// ofNetwork reports whether a message (rtnetlink(7)) is about a route to the network of a link. The kernel adds this
// route with an address, or when the link comes up. The route to fe80::/64, which every link has, does not count.
func ofNetwork(message []byte) bool {
	if len(message) < unix.SizeofRtMsg {
		return false
	}
	family, length, table, protocol, kind := message[0], int(message[1]), message[4], message[5], message[7]
	if table != unix.RT_TABLE_MAIN || protocol != unix.RTPROT_KERNEL || kind != unix.RTN_UNICAST || length == 0 {
		return false
	}
	local := false
	err := fwnetlink.Attributes(message[unix.SizeofRtMsg:], func(typ uint16, b []byte) error {
		if addr, ok := netip.AddrFromSlice(b); ok && typ == unix.RTA_DST {
			local = addr.IsLinkLocalUnicast()
		}
		return nil
	})
	return err == nil && !(family == unix.AF_INET6 && local)
}
