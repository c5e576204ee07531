package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	fwnetlink "github.com/fairway-net/fairway/internal/kernel/netlink"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// A Device is the kernel's state of a WireGuard device.
type Device struct {
	Private, Public plan.Key
	Port            uint16
	Peers           map[plan.Key]plan.WireGuardPeer
}

// A Conn speaks WireGuard's generic netlink, in the network namespace of the thread that opened it.
type Conn struct {
	*fwnetlink.Conn
	family uint16
}

// Open fails if the kernel has no WireGuard. The kernel loads the module for this question if it may.
func Open(ctx context.Context) (*Conn, error) {
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
	return &Conn{Conn: conn, family: family}, nil
}

// Device reads a device by its link index.
func (c *Conn) Device(ctx context.Context, link int) (*Device, error) {
	e := netlink.NewAttributeEncoder()
	e.Uint32(unix.WGDEVICE_A_IFINDEX, uint32(link))
	attrs, err := e.Encode()
	if err != nil {
		return nil, err
	}
	d := &Device{Peers: map[plan.Key]plan.WireGuardPeer{}}
	_, err = c.Ask(ctx, c.family, unix.NLM_F_DUMP, slices.Concat([]byte{unix.WG_CMD_GET_DEVICE, unix.WG_GENL_VERSION, 0, 0}, attrs),
		func(b []byte) error { return fwnetlink.GenericAttributes(b, d.attribute) })
	if err != nil {
		return nil, fmt.Errorf("read the WireGuard device: %w", err)
	}
	for _, p := range d.Peers {
		slices.SortFunc(p.Allowed, netip.Prefix.Compare)
	}
	return d, nil
}

// attribute reads one attribute of the device. A peer with many addresses comes in several answers.
func (d *Device) attribute(typ uint16, b []byte) error {
	switch typ {
	case unix.WGDEVICE_A_PRIVATE_KEY:
		copy(d.Private[:], b)
	case unix.WGDEVICE_A_PUBLIC_KEY:
		copy(d.Public[:], b)
	case unix.WGDEVICE_A_LISTEN_PORT:
		if len(b) >= 2 {
			d.Port = binary.NativeEndian.Uint16(b)
		}
	case unix.WGDEVICE_A_PEERS:
		return fwnetlink.Attributes(b, func(_ uint16, b []byte) error { return d.peer(b) })
	}
	return nil
}

func (d *Device) peer(b []byte) error {
	var key plan.Key
	var p plan.WireGuardPeer
	err := fwnetlink.Attributes(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.WGPEER_A_PUBLIC_KEY:
			copy(key[:], b)
		case unix.WGPEER_A_ENDPOINT:
			p.Endpoint = endpointOf(b)
		case unix.WGPEER_A_ALLOWEDIPS:
			return fwnetlink.Attributes(b, func(_ uint16, b []byte) error {
				cidr, err := allowedIP(b)
				p.Allowed = append(p.Allowed, cidr)
				return err
			})
		}
		return nil
	})
	if had, known := d.Peers[key]; known {
		had.Allowed = append(had.Allowed, p.Allowed...)
		p = had
	}
	d.Peers[key] = p
	return err
}

// endpointOf reads a sockaddr. It returns the zero value if b is none.
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

// A Change sets one peer to a wanted state, or removes it.
type Change struct {
	Key    plan.Key
	Peer   plan.WireGuardPeer
	Remove bool
}

func (w Change) encode(e *netlink.AttributeEncoder) error {
	e.Bytes(unix.WGPEER_A_PUBLIC_KEY, w.Key[:])
	if w.Remove {
		e.Uint32(unix.WGPEER_A_FLAGS, unix.WGPEER_F_REMOVE_ME)
		return nil
	}
	e.Uint32(unix.WGPEER_A_FLAGS, unix.WGPEER_F_REPLACE_ALLOWEDIPS)
	e.Bytes(unix.WGPEER_A_ENDPOINT, sockaddr(w.Peer.Endpoint))
	e.Nested(unix.WGPEER_A_ALLOWEDIPS, func(e *netlink.AttributeEncoder) error {
		for i, cidr := range w.Peer.Allowed {
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

// peersAtOnce is the number of peers in one message. The kernel limits a message to 64 KiB, and a Node has at most one
// podCIDR of each family.
const peersAtOnce = 100

// SetPeers makes changes in order. An address of another peer moves to the changed one.
func (c *Conn) SetPeers(ctx context.Context, link int, changes []Change) error {
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

// SetDevice gives the device a private key and a UDP port.
func (c *Conn) SetDevice(ctx context.Context, link int, private plan.Key, port uint16) error {
	err := c.set(ctx, link, func(e *netlink.AttributeEncoder) {
		e.Bytes(unix.WGDEVICE_A_PRIVATE_KEY, private[:])
		e.Uint16(unix.WGDEVICE_A_LISTEN_PORT, port)
	})
	if err != nil {
		return fmt.Errorf("set WireGuard's key and its UDP port %d: %w", port, err)
	}
	return nil
}

func (c *Conn) set(ctx context.Context, link int, attributes func(*netlink.AttributeEncoder)) error {
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
