package tunnel

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kernel/sysctl"
	"github.com/fairway-net/fairway/internal/podnetwork/plan"
)

// WireGuardLink is the name of the device. Names that begin with fw are for pods' links.
const WireGuardLink = "fairway-wg"

// A WireGuard makes the kernel's device and its peers what a plan.WireGuard wants, in two steps like a VXLAN. The
// private key is in the kernel and on no disk.
type WireGuard struct {
	handle  netlinksafe.Handle
	conn    *Conn // nil: not needed so far
	Link    int   // 0: there is none
	have    *Device
	private plan.Key // for a new device; zero: make a new key
}

// NewWireGuard returns the device. private is the key for a new device; zero: make a new key.
func NewWireGuard(handle netlinksafe.Handle, private plan.Key) WireGuard {
	return WireGuard{handle: handle, private: private}
}

// Close closes the netlink socket.
func (s *WireGuard) Close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// Read reads the device, if it is there.
func (s *WireGuard) Read(ctx context.Context) error {
	link, err := FindWireGuard(s.handle)
	if link == nil || err != nil {
		return err
	}
	return s.look(ctx, link.Attrs().Index)
}

// look reads the device with a link index.
func (s *WireGuard) look(ctx context.Context, index int) (err error) {
	if s.conn == nil {
		if s.conn, err = Open(ctx); err != nil {
			return err
		}
	}
	if s.have, err = s.conn.Device(ctx, index); err == nil {
		s.Link = index
	}
	return err
}

// AllowedIPs returns the allowed addresses of each peer's key. Nil: there is no device.
func (s *WireGuard) AllowedIPs() map[plan.Key][]netip.Prefix {
	if s.have == nil {
		return nil
	}
	allowed := make(map[plan.Key][]netip.Prefix, len(s.have.Peers))
	for key, peer := range s.have.Peers {
		allowed[key] = peer.Allowed
	}
	return allowed
}

// Public returns the public key of the device. Zero: there is no device.
func (s *WireGuard) Public() plan.Key {
	if s.have == nil {
		return plan.Key{}
	}
	return s.have.Public
}

// Bring makes the device and sets its peers.
func (s *WireGuard) Bring(ctx context.Context, w *plan.WireGuard) error {
	mtu, err := WireGuardMTU(s.handle, w)
	if err != nil {
		return fmt.Errorf("make the WireGuard device: %w", err)
	}
	link, err := s.device(ctx, mtu)
	if err != nil {
		return fmt.Errorf("make the WireGuard device %s: %w", WireGuardLink, err)
	}
	if err := s.setKey(ctx); err != nil {
		return err
	}
	if err := setUp(s.handle, link); err != nil {
		return fmt.Errorf("make the WireGuard device %s: %w", WireGuardLink, err)
	}
	return errors.Join(syncAddrs(s.handle, link, w.Addrs), s.syncPeers(ctx, w))
}

// WireGuardMTU returns the MTU of the device, which fits into the link below it.
func WireGuardMTU(handle netlinksafe.Handle, w *plan.WireGuard) (int, error) {
	local := plan.Underlay(w.Self, netip.Addr.Is4)
	if !local.IsValid() {
		local = plan.Underlay(w.Self, netip.Addr.Is6)
	}
	below, err := Uplink(handle, func(a netip.Addr) bool { return a == local })
	switch mtu := below - w.Overhead(); {
	case err != nil:
		return 0, err
	case below == 0:
		return 0, fmt.Errorf("no link has this node's InternalIP %s [is kubelet's --node-ip right?]", local)
	case mtu < minMTU:
		return 0, fmt.Errorf("the link of %s has MTU %d, at least %d are needed", local, below, minMTU+w.Overhead())
	default:
		return mtu, nil
	}
}

// device returns the device, and makes it if there is none.
func (s *WireGuard) device(ctx context.Context, mtu int) (netlink.Link, error) {
	link, err := FindWireGuard(s.handle)
	if err != nil {
		return nil, err
	}
	if link == nil {
		want := &netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: WireGuardLink, MTU: mtu, TxQLen: -1}}
		if err := s.handle.LinkAdd(want); err != nil {
			return nil, fmt.Errorf("%w [has the kernel CONFIG_WIREGUARD? modprobe wireguard]", err)
		}
		if link, err = FindWireGuard(s.handle); err != nil || link == nil {
			return nil, errors.Join(errors.New("it has gone again"), err)
		}
	}
	if link.Attrs().MTU != mtu {
		if err := s.handle.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set its MTU to %d: %w", mtu, err)
		}
	}
	return link, s.look(ctx, link.Attrs().Index)
}

// setKey gives the device its port, and a key if it has none.
func (s *WireGuard) setKey(ctx context.Context) error {
	private := s.Secret()
	if private == (plan.Key{}) {
		k, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return fmt.Errorf("make a WireGuard key: %w", err)
		}
		private = plan.Key(k.Bytes())
	}
	if s.have.Private != (plan.Key{}) && s.have.Port == numbers.PortWireGuard {
		return nil
	}
	if err := s.conn.SetDevice(ctx, s.Link, private, numbers.PortWireGuard); err != nil {
		return err
	}
	return s.look(ctx, s.Link)
}

// syncPeers sets the peers that are missing or differ.
func (s *WireGuard) syncPeers(ctx context.Context, w *plan.WireGuard) error {
	var changes []Change
	for key, want := range w.Peers {
		have, ok := s.have.Peers[key]
		known := have.Endpoint.Port() == want.Endpoint.Port() && slices.Contains(want.Known, have.Endpoint.Addr())
		if !ok || !known || !slices.Equal(have.Allowed, want.Allowed) {
			changes = append(changes, Change{Key: key, Peer: *want})
		}
	}
	return s.conn.SetPeers(ctx, s.Link, changes)
}

// Tidy removes the stale peers, or the device if w is nil.
func (s *WireGuard) Tidy(ctx context.Context, w *plan.WireGuard) error {
	if w == nil {
		return RemoveWireGuard(s.handle)
	}
	var changes []Change
	if s.have != nil {
		for key := range s.have.Peers {
			if w.Peers[key] == nil {
				changes = append(changes, Change{Key: key, Remove: true})
			}
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return s.conn.SetPeers(ctx, s.Link, changes)
}

// FindWireGuard returns our device, or nil if there is no link of that name.
func FindWireGuard(handle netlinksafe.Handle) (netlink.Link, error) {
	link, err := handle.LinkByName(WireGuardLink)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find it: %w", err)
	}
	if link.Type() != "wireguard" {
		return nil, fmt.Errorf("a link of that name is no WireGuard device but %s [delete it]", link.Type())
	}
	return link, nil
}

// RemoveWireGuard deletes our device, if it is there, together with its private key.
func RemoveWireGuard(handle netlinksafe.Handle) error {
	link, err := FindWireGuard(handle)
	if link == nil || err != nil {
		return nil // another program's link of that name stays
	}
	if err := handle.LinkDel(link); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the WireGuard device %s: %w", WireGuardLink, err)
	}
	return nil
}

// setUp sets a tunnel's link up. It makes rp_filter loose, because packets come from peers whose routes to this node
// may still take another way; our own rules check their sources. The link gets no link-local address, because nothing
// would answer there.
func setUp(handle netlinksafe.Handle, link netlink.Link) error {
	if link.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	name := link.Attrs().Name
	for name, value := range map[string]string{"ipv4/conf/" + name + "/rp_filter": "2", "ipv6/conf/" + name + "/addr_gen_mode": "1"} {
		if err := sysctl.WriteFile("/proc/sys/net/"+name, value); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set sysctl: %w %s", err, sysctl.Advice)
		}
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set it up: %w", err)
	}
	return nil
}

// Secret returns the private key of the device, or the key for the next device.
func (s *WireGuard) Secret() plan.Key {
	if s.have == nil || s.have.Private == (plan.Key{}) {
		return s.private
	}
	return s.have.Private
}
