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

// watchNetworks calls changed whenever the kernel has added a route to a network that a link is in, until ctx ends: a link that
// is up again has lost all other routes over it, those to other nodes' pods too. What it misses, the next look finds. The
// socket is of the network namespace of the calling thread. What is returned waits for the end.
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
			case errors.Is(err, unix.ENOBUFS): // there were too many: one may have been such
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

// ofNetwork reports whether a message (rtnetlink(7)) is about a route to a network that a link is in, as the kernel adds it
// with an address or when the link comes up. Each link has one to fe80::/64, pods' too: those do not count.
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
