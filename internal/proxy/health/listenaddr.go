package health

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/fairway-net/fairway/internal/kernel/netns"
)

// A listenAddr is an address to listen on, with its families.
type listenAddr struct {
	network string // "tcp", "tcp4" or "tcp6"
	addr    netip.Addr
}

var all4, all6 = netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")

// listenAddrs returns the listening addresses for the prefixes; none for no prefix. If it has one of the node's own
// addresses, it also has the loopback address of that family, because people on the node ask localhost.
func listenAddrs(prefixes []netip.Prefix) ([]listenAddr, error) {
	is4, is6 := slices.Contains(prefixes, all4), slices.Contains(prefixes, all6)
	var at []listenAddr
	switch {
	case is4 && is6:
		// Both families, if the machine has both: see listen.
		return []listenAddr{{"tcp", netip.IPv4Unspecified()}}, nil
	case is4:
		at = append(at, listenAddr{"tcp4", netip.IPv4Unspecified()})
	case is6:
		at = append(at, listenAddr{"tcp6", netip.IPv6Unspecified()})
	}
	if len(prefixes) == len(at) {
		return at, nil
	}
	all, err := netns.Addrs()
	if err != nil {
		return nil, err
	}
	for _, own := range all {
		a := own.Addr()
		switch {
		case a.IsLinkLocalUnicast(): // has no meaning without its link
		case is4 && a.Is4(), is6 && a.Is6(): // is in the unspecified address
		case slices.Contains(at, listenAddr{"tcp", a}): // on two links
		case slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }):
			at = append(at, listenAddr{"tcp", a})
		}
	}
	for _, local := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		isOwn := func(l listenAddr) bool {
			return l.network == "tcp" && !l.addr.IsLoopback() && l.addr.Is4() == local.Is4()
		}
		if slices.ContainsFunc(at, isOwn) && !slices.Contains(at, listenAddr{"tcp", local}) {
			at = append(at, listenAddr{"tcp", local})
		}
	}
	if len(at) == 0 {
		return nil, fmt.Errorf("this machine has no address in %v [see --nodeport-addresses]", prefixes)
	}
	return at, nil
}
