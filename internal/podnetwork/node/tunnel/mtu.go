package tunnel

import (
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"golang.org/x/sys/unix"
)

// Uplink returns the MTU of the link with an address for which is returns true. 0: no link has one.
func Uplink(handle netlinksafe.Handle, is func(netip.Addr) bool) (int, error) {
	addrs, err := handle.AddrList(nil, unix.AF_UNSPEC)
	if err != nil {
		return 0, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if addr, _ := netip.AddrFromSlice(a.IP); !is(addr.Unmap()) {
			continue
		}
		link, err := handle.LinkByIndex(a.LinkIndex)
		if err != nil {
			return 0, fmt.Errorf("find the uplink: %w", err)
		}
		if vnis[link.Attrs().Name] != 0 {
			continue // a tunnel of ours may have the same address as its uplink
		}
		return link.Attrs().MTU, nil
	}
	return 0, nil
}
