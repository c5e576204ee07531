package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// ranges reads the podCIDRs with host-local's parser.
func ranges(conf *netConf, stdin []byte, cniArgs string) (*allocator.IPAMConfig, error) {
	stdin, err := withDataDir(stdin, conf.IPAM.DataDir)
	if err != nil {
		return nil, failf(types.ErrDecodingFailure, "%v", err)
	}
	ipam, _, err := allocator.LoadIPAMConfig(stdin, cniArgs)
	if err != nil {
		return nil, failf(types.ErrInvalidNetworkConfig, "read the pod address ranges of network %q: %v (ipam.ranges holds the node's podCIDRs; the fairway agent writes them)", conf.Name, err)
	}
	return ipam, nil
}

// reserve takes one address from every range set, which means one for each family, or none at all.
func reserve(conf *netConf, stdin []byte, cniArgs string, a attachment) ([]netip.Addr, error) {
	ipam, err := ranges(conf, stdin, cniArgs)
	if err != nil {
		return nil, err
	}
	before, err := storedAddrs(conf, a)
	if err != nil {
		return nil, failf(types.ErrIOFailure, "%v", err)
	}
	store, err := disk.New(ipam.Name, ipam.DataDir)
	if err != nil {
		return nil, failf(types.ErrIOFailure, "open the address store %s: %v", filepath.Join(ipam.DataDir, ipam.Name), err)
	}
	defer store.Close()

	wanted := ipam.IPArgs
	var got []netip.Addr
	for i := range ipam.Ranges {
		set := &ipam.Ranges[i]
		var request net.IP
		wanted, request = takeFrom(wanted, set)
		alloc := allocator.NewIPAllocator(set, store, i)
		ip, err := alloc.Get(a.containerID, a.ifName, request)
		if err != nil {
			// The addresses that this container had before this ADD stay. Others are released, because on a full disk
			// host-local keeps an address that it could not record as the last one.
			var cleanup error
			if len(before) == 0 {
				cleanup = release(conf, a)
			}
			return nil, withCleanup(noAddressError(err, set), cleanup)
		}
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		got = append(got, addr.Unmap())
	}
	if len(wanted) > 0 {
		return nil, withCleanup(failf(types.ErrInvalidNetworkConfig, "the requested address %s is in none of the node's podCIDRs (choose one that is)", wanted[0]), release(conf, a))
	}
	return got, nil
}

// noAddressError says why no address was taken, for the reader of a pod's events. The text is the only sign of
// host-local's error.
func noAddressError(err error, set *allocator.RangeSet) error {
	if !strings.Contains(err.Error(), "no IP addresses available") {
		return failf(types.ErrTryAgainLater, "take a pod address: %v", err)
	}
	var cidrs []string
	for _, r := range *set {
		cidrs = append(cidrs, (*net.IPNet)(&r.Subnet).String())
	}
	return failf(types.ErrTryAgainLater, "take a pod address in the node's podCIDR %s: all of its addresses are taken (delete pods on this node, lower kubelet's maxPods to what the podCIDR holds, or make the node again with a larger podCIDR)", strings.Join(cidrs, ", "))
}

// takeFrom removes the first requested address that the set contains.
func takeFrom(requested []net.IP, set *allocator.RangeSet) (rest []net.IP, taken net.IP) {
	for _, ip := range requested {
		if taken == nil && set.Contains(ip) {
			taken = ip
			continue
		}
		rest = append(rest, ip)
	}
	return rest, taken
}

// release releases every address of the attachment; it is no error if there is none.
func release(conf *netConf, a attachment) error {
	return releaseUnused(conf, func(holder attachment) bool { return holder != a })
}

// openStore opens the network's store. It returns nil if there is none, because DEL, CHECK and GC must not create
// files.
func openStore(conf *netConf) (*disk.Store, error) {
	dir := filepath.Join(conf.IPAM.DataDir, conf.Name)
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return nil, nil
	}
	store, err := disk.New(conf.Name, conf.IPAM.DataDir)
	if err != nil {
		return nil, fmt.Errorf("open the address store %s: %w", dir, err)
	}
	return store, nil
}

// storedAddrs lists the addresses that the store keeps for the attachment.
func storedAddrs(conf *netConf, a attachment) (map[netip.Addr]bool, error) {
	addrs := map[netip.Addr]bool{}
	store, err := openStore(conf)
	if store == nil {
		return addrs, err
	}
	defer store.Close()
	if err := store.Lock(); err != nil {
		return nil, fmt.Errorf("lock the address store: %w", err)
	}
	defer store.Unlock()
	for _, ip := range store.GetByID(a.containerID, a.ifName) {
		addr, _ := netip.AddrFromSlice(ip)
		addrs[addr.Unmap()] = true
	}
	return addrs, nil
}

// releaseUnused releases the addresses for which keep returns false, and addresses without a holder. host-local has no
// call for either. Its format is one file for each address: container, CR LF, interface. The lock excludes an ADD
// between making its file and writing it. So an empty file was left by a plugin that was killed at that point.
func releaseUnused(conf *netConf, keep func(holder attachment) bool) error {
	store, err := openStore(conf)
	if store == nil {
		return err
	}
	defer store.Close()
	if err := store.Lock(); err != nil {
		return fmt.Errorf("lock the address store: %w", err)
	}
	defer store.Unlock()
	dir := filepath.Join(conf.IPAM.DataDir, conf.Name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the address store: %w", err)
	}
	var failed error
	for _, entry := range entries {
		if _, err := netip.ParseAddr(entry.Name()); err != nil {
			continue // the lock and the last_reserved_ip files
		}
		file := filepath.Join(dir, entry.Name())
		text, err := os.ReadFile(file)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("read the address store: %w", err))
			continue
		}
		id, ifName, _ := strings.Cut(strings.TrimSpace(string(text)), disk.LineBreak)
		if id != "" && keep(attachment{network: conf.Name, containerID: id, ifName: ifName}) {
			continue
		}
		if err := os.Remove(file); err != nil {
			failed = errors.Join(failed, fmt.Errorf("release a pod address: %w", err))
		}
	}
	return failed
}
