package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// Probe asks the kernel whether it supports a way, and changes nothing. The kernel loads a module for this question if
// it may.
func Probe(ctx context.Context, way plan.Way) error {
	switch way {
	case plan.WayVXLAN, plan.WayAuto:
		return probeLink(ctx, "vxlan")
	case plan.WayWireGuard:
		conn, err := Open(ctx)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	return nil
}

// probeLink asks for a link of a kind without the required parameters. A kernel that knows the kind refuses with
// EINVAL.
func probeLink(ctx context.Context, kind string) error {
	conn, err := fwnetlink.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer conn.Close()
	info := fwnetlink.AppendText(nil, unix.IFLA_INFO_KIND, kind)
	head := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, uint16(4+len(info))), unix.IFLA_LINKINFO)
	_, err = conn.Ask(ctx, unix.RTM_NEWLINK, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL,
		slices.Concat(make([]byte, unix.SizeofIfInfomsg), head, info), func([]byte) error { return nil })
	switch {
	case errors.Is(err, unix.EINVAL):
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("the kernel has no links of kind %s [CONFIG_%s; modprobe %s]", kind, strings.ToUpper(kind), kind)
	}
	return fmt.Errorf("ask the kernel for links of kind %s: %w", kind, err)
}
