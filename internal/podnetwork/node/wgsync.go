package node

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
)

// wgLink is the name of the device. Names that begin with fw are pods' links.
const wgLink = "fairway-wg"

// A wgSync makes the kernel's device and its peers what is wanted, in two steps as a vxlanSync.
// The kernel keeps the private key: it is on no disk.
type wgSync struct {
	handle  netlinksafe.Handle
	conn    *wgConn // nil: not needed so far
	link    int     // 0: there is none
	have    *wgDevice
	private Key // for a device without one; none: a new one
}

func (s *wgSync) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// read reads the device, if it is there.
func (s *wgSync) read(ctx context.Context) error {
	link, err := findWireGuard(s.handle)
	if link == nil || err != nil {
		return err
	}
	return s.look(ctx, link.Attrs().Index)
}

// look reads the device with that index.
func (s *wgSync) look(ctx context.Context, index int) (err error) {
	if s.conn == nil {
		if s.conn, err = openWG(ctx); err != nil {
			return err
		}
	}
	if s.have, err = s.conn.device(ctx, index); err == nil {
		s.link = index
	}
	return err
}

// stands says what the keys of the device's peers stand for; none: there is no device.
func (s *wgSync) stands() map[Key][]netip.Prefix {
	if s.have == nil {
		return nil
	}
	allowed := make(map[Key][]netip.Prefix, len(s.have.peers))
	for key, peer := range s.have.peers {
		allowed[key] = peer.allowed
	}
	return allowed
}

// public is the key of the device; none: there is no device.
func (s *wgSync) public() Key {
	if s.have == nil {
		return Key{}
	}
	return s.have.public
}

// bring makes the device and sets the peers.
func (s *wgSync) bring(ctx context.Context, w *wireGuard) error {
	mtu, err := wgMTU(s.handle, w)
	if err != nil {
		return fmt.Errorf("make the WireGuard device: %w", err)
	}
	link, err := s.device(ctx, mtu)
	if err != nil {
		return fmt.Errorf("make the WireGuard device %s: %w", wgLink, err)
	}
	if err := s.setKey(ctx); err != nil {
		return err
	}
	if err := setUp(s.handle, link); err != nil {
		return fmt.Errorf("make the WireGuard device %s: %w", wgLink, err)
	}
	return errors.Join(syncAddrs(s.handle, link, w.addrs), s.syncPeers(ctx, w))
}

// wgMTU is the device's: what fits the link below.
func wgMTU(handle netlinksafe.Handle, w *wireGuard) (int, error) {
	local := underlay(w.self, netip.Addr.Is4)
	if !local.IsValid() {
		local = underlay(w.self, netip.Addr.Is6)
	}
	below, err := uplink(handle, func(a netip.Addr) bool { return a == local })
	switch mtu := below - w.overhead(); {
	case err != nil:
		return 0, err
	case below == 0:
		return 0, fmt.Errorf("no link has this node's InternalIP %s [is kubelet's --node-ip right?]", local)
	case mtu < minMTU:
		return 0, fmt.Errorf("the link of %s has MTU %d, at least %d are needed", local, below, minMTU+w.overhead())
	default:
		return mtu, nil
	}
}

// device returns the device, and makes it where there is none.
func (s *wgSync) device(ctx context.Context, mtu int) (netlink.Link, error) {
	link, err := findWireGuard(s.handle)
	if err != nil {
		return nil, err
	}
	if link == nil {
		want := &netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: wgLink, MTU: mtu, TxQLen: -1}}
		if err := s.handle.LinkAdd(want); err != nil {
			return nil, fmt.Errorf("%w [has the kernel CONFIG_WIREGUARD? modprobe wireguard]", err)
		}
		if link, err = findWireGuard(s.handle); err != nil || link == nil {
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

// setKey gives the device a key, if it has none, and its port.
func (s *wgSync) setKey(ctx context.Context) error {
	private := s.secret()
	if private == (Key{}) {
		k, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			return fmt.Errorf("make a WireGuard key: %w", err)
		}
		private = Key(k.Bytes())
	}
	if s.have.private != (Key{}) && s.have.port == numbers.PortWireGuard {
		return nil
	}
	if err := s.conn.setDevice(ctx, s.link, private, numbers.PortWireGuard); err != nil {
		return err
	}
	return s.look(ctx, s.link)
}

// syncPeers sets what is missing or other. Addresses move from one peer to another.
func (s *wgSync) syncPeers(ctx context.Context, w *wireGuard) error {
	var changes []wgChange
	for key, want := range w.peers {
		have, ok := s.have.peers[key]
		known := have.endpoint.Port() == want.endpoint.Port() && slices.Contains(want.known, have.endpoint.Addr())
		if !ok || !known || !slices.Equal(have.allowed, want.allowed) {
			changes = append(changes, wgChange{key: key, peer: want.wgPeer})
		}
	}
	return s.conn.setPeers(ctx, s.link, changes)
}

// tidy removes what no route needs any more: peers, or the device where none is wanted.
func (s *wgSync) tidy(ctx context.Context, w *wireGuard) error {
	if w == nil {
		return removeWireGuard(s.handle)
	}
	var changes []wgChange
	if s.have != nil {
		for key := range s.have.peers {
			if w.peers[key] == nil {
				changes = append(changes, wgChange{key: key, remove: true})
			}
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return s.conn.setPeers(ctx, s.link, changes)
}

// findWireGuard returns our device, or nil.
func findWireGuard(handle netlinksafe.Handle) (netlink.Link, error) {
	link, err := handle.LinkByName(wgLink)
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

// removeWireGuard deletes our device, if it is there, and its private key with it.
func removeWireGuard(handle netlinksafe.Handle) error {
	link, err := findWireGuard(handle)
	if link == nil || err != nil {
		return nil // another program's link of that name stays
	}
	if err := handle.LinkDel(link); err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the WireGuard device %s: %w", wgLink, err)
	}
	return nil
}

// setUp sets a tunnel's link up. Packets come from peers whose routes to us may still be others;
// what checks their sources is not rp_filter. No link-local address: nothing would answer at it.
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

// secret is the private key of the device, or the one for the next device.
func (s *wgSync) secret() Key {
	if s.have == nil || s.have.private == (Key{}) {
		return s.private
	}
	return s.have.private
}
