package node

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
)

// A Key is a key of WireGuard's, public or private (Curve25519). Zero: none.
type Key [unix.WG_KEY_LEN]byte

// String is what the program wg prints; "" for none.
func (k Key) String() string {
	if k == (Key{}) {
		return ""
	}
	return base64.StdEncoding.EncodeToString(k[:])
}

// ParseKey reads what String returns. What is no key is none.
func ParseKey(text string) (k Key) {
	if b, err := base64.StdEncoding.DecodeString(text); err == nil && len(b) == len(k) {
		copy(k[:], b)
	}
	return k
}

// A wgPeer is a node as WireGuard knows it.
type wgPeer struct {
	endpoint netip.AddrPort
	// allowed are the destinations that lead to it, and the sources that it may have. Sorted.
	allowed []netip.Prefix
}

// A wgDevice is what the kernel says of a WireGuard device.
type wgDevice struct {
	private, public Key
	port            uint16
	peers           map[Key]wgPeer
}

// A wgConn speaks WireGuard's generic netlink, in the network namespace of the thread that
// opened it.
type wgConn struct {
	*fwnetlink.Conn
	family uint16
}

// openWG fails where the kernel has no WireGuard. The kernel loads the module for the question, if
// it may.
func openWG(ctx context.Context) (*wgConn, error) {
	family, err := fwnetlink.Family(ctx, unix.WG_GENL_NAME)
	if errors.Is(err, unix.ENOENT) {
		return nil, errors.New("the kernel has no WireGuard [CONFIG_WIREGUARD, Linux 5.6 or newer; modprobe wireguard]")
	}
	if err != nil {
		return nil, fmt.Errorf("look for WireGuard: %w", err)
	}
	conn, err := fwnetlink.Dial(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	return &wgConn{Conn: conn, family: family}, nil
}

// device reads a device by its index.
func (c *wgConn) device(ctx context.Context, link int) (*wgDevice, error) {
	e := netlink.NewAttributeEncoder()
	e.Uint32(unix.WGDEVICE_A_IFINDEX, uint32(link))
	attrs, err := e.Encode()
	if err != nil {
		return nil, err
	}
	d := &wgDevice{peers: map[Key]wgPeer{}}
	_, err = c.Ask(ctx, c.family, unix.NLM_F_DUMP, slices.Concat([]byte{unix.WG_CMD_GET_DEVICE, unix.WG_GENL_VERSION, 0, 0}, attrs),
		func(b []byte) error { return fwnetlink.GenericAttributes(b, d.attribute) })
	if err != nil {
		return nil, fmt.Errorf("read the WireGuard device: %w", err)
	}
	for _, p := range d.peers {
		slices.SortFunc(p.allowed, comparePrefixes)
	}
	return d, nil
}

// attribute takes one of the device's. A peer with many addresses comes in several answers.
func (d *wgDevice) attribute(typ uint16, b []byte) error {
	switch typ {
	case unix.WGDEVICE_A_PRIVATE_KEY:
		copy(d.private[:], b)
	case unix.WGDEVICE_A_PUBLIC_KEY:
		copy(d.public[:], b)
	case unix.WGDEVICE_A_LISTEN_PORT:
		if len(b) >= 2 {
			d.port = binary.NativeEndian.Uint16(b)
		}
	case unix.WGDEVICE_A_PEERS:
		return fwnetlink.Attributes(b, func(_ uint16, b []byte) error { return d.peer(b) })
	}
	return nil
}

func (d *wgDevice) peer(b []byte) error {
	var key Key
	var p wgPeer
	err := fwnetlink.Attributes(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.WGPEER_A_PUBLIC_KEY:
			copy(key[:], b)
		case unix.WGPEER_A_ENDPOINT:
			p.endpoint = endpointOf(b)
		case unix.WGPEER_A_ALLOWEDIPS:
			return fwnetlink.Attributes(b, func(_ uint16, b []byte) error {
				cidr, err := allowedIP(b)
				p.allowed = append(p.allowed, cidr)
				return err
			})
		}
		return nil
	})
	if had, known := d.peers[key]; known {
		had.allowed = append(had.allowed, p.allowed...)
		p = had
	}
	d.peers[key] = p
	return err
}

// endpointOf reads a sockaddr; what is none is not valid.
func endpointOf(b []byte) netip.AddrPort {
	var addr netip.Addr
	switch {
	case len(b) >= unix.SizeofSockaddrInet6 && binary.NativeEndian.Uint16(b) == unix.AF_INET6:
		addr = netip.AddrFrom16([16]byte(b[8:24]))
	case len(b) >= unix.SizeofSockaddrInet4 && binary.NativeEndian.Uint16(b) == unix.AF_INET:
		addr = netip.AddrFrom4([4]byte(b[4:8]))
	default:
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b[2:]))
}

func sockaddr(end netip.AddrPort) []byte {
	if end.Addr().Is4() {
		b := binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), end.Port())
		return slices.Concat(b, end.Addr().AsSlice(), make([]byte, 8))
	}
	b := binary.BigEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, unix.AF_INET6), end.Port())
	return slices.Concat(b, make([]byte, 4), end.Addr().AsSlice(), make([]byte, 4))
}

func allowedIP(b []byte) (netip.Prefix, error) {
	var addr netip.Addr
	bits := -1
	err := fwnetlink.Attributes(b, func(typ uint16, b []byte) error {
		switch {
		case typ == unix.WGALLOWEDIP_A_IPADDR:
			addr, _ = netip.AddrFromSlice(b)
		case typ == unix.WGALLOWEDIP_A_CIDR_MASK && len(b) > 0:
			bits = int(b[0])
		}
		return nil
	})
	cidr := netip.PrefixFrom(addr, bits)
	if err == nil && !cidr.IsValid() {
		err = fmt.Errorf("an allowed address of WireGuard has %d bits", bits)
	}
	return cidr, err
}

// A wgChange sets one peer as it is to be, or removes it.
type wgChange struct {
	key    Key
	peer   wgPeer
	remove bool
}

func (w wgChange) encode(e *netlink.AttributeEncoder) error {
	e.Bytes(unix.WGPEER_A_PUBLIC_KEY, w.key[:])
	if w.remove {
		e.Uint32(unix.WGPEER_A_FLAGS, unix.WGPEER_F_REMOVE_ME)
		return nil
	}
	e.Uint32(unix.WGPEER_A_FLAGS, unix.WGPEER_F_REPLACE_ALLOWEDIPS)
	e.Bytes(unix.WGPEER_A_ENDPOINT, sockaddr(w.peer.endpoint))
	e.Nested(unix.WGPEER_A_ALLOWEDIPS, func(e *netlink.AttributeEncoder) error {
		for i, cidr := range w.peer.allowed {
			e.Nested(uint16(i), func(e *netlink.AttributeEncoder) error {
				family := uint16(unix.AF_INET6)
				if cidr.Addr().Is4() {
					family = unix.AF_INET
				}
				e.Uint16(unix.WGALLOWEDIP_A_FAMILY, family)
				e.Bytes(unix.WGALLOWEDIP_A_IPADDR, cidr.Addr().AsSlice())
				e.Uint8(unix.WGALLOWEDIP_A_CIDR_MASK, uint8(cidr.Bits()))
				return nil
			})
		}
		return nil
	})
	return nil
}

// peersAtOnce are set with one message, which the kernel bounds to 64 KiB; a Node has at most one
// podCIDR of each family.
const peersAtOnce = 100

// setPeers makes changes in order: an address that another peer has moves.
func (c *wgConn) setPeers(ctx context.Context, link int, changes []wgChange) error {
	for some := range slices.Chunk(changes, peersAtOnce) {
		err := c.set(ctx, link, func(e *netlink.AttributeEncoder) {
			e.Nested(unix.WGDEVICE_A_PEERS, func(e *netlink.AttributeEncoder) error {
				for i, w := range some {
					e.Nested(uint16(i), w.encode)
				}
				return nil
			})
		})
		if err != nil {
			return fmt.Errorf("set WireGuard's peers: %w", err)
		}
	}
	return nil
}

// setDevice gives the device a private key and a port.
func (c *wgConn) setDevice(ctx context.Context, link int, private Key, port uint16) error {
	err := c.set(ctx, link, func(e *netlink.AttributeEncoder) {
		e.Bytes(unix.WGDEVICE_A_PRIVATE_KEY, private[:])
		e.Uint16(unix.WGDEVICE_A_LISTEN_PORT, port)
	})
	if err != nil {
		return fmt.Errorf("set WireGuard's key and its UDP port %d: %w", port, err)
	}
	return nil
}

func (c *wgConn) set(ctx context.Context, link int, attributes func(*netlink.AttributeEncoder)) error {
	e := netlink.NewAttributeEncoder()
	e.Uint32(unix.WGDEVICE_A_IFINDEX, uint32(link))
	attributes(e)
	attrs, err := e.Encode()
	if err != nil {
		return err
	}
	_, err = c.Ask(ctx, c.family, 0, slices.Concat([]byte{unix.WG_CMD_SET_DEVICE, unix.WG_GENL_VERSION, 0, 0}, attrs), func([]byte) error { return nil })
	return err
}
