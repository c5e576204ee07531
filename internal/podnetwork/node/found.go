package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// Found names what a Network has made on this machine and is there still, as an operator
// would look for it: "table inet fairway-pods", "8 routes of protocol 70". Nil: nothing.
func (n *Network) Found(ctx context.Context) ([]string, error) {
	var parts []string
	chains, err := n.rules.table.Chains(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for the masquerade rules: %w", err)
	}
	if len(chains) > 0 {
		parts = append(parts, "table inet "+n.rules.table.Name())
	}
	netlink, err := cni.OpenNetlink()
	if err != nil {
		return nil, err
	}
	defer netlink.Close()
	for _, name := range []string{vxlanLink, egressLink} {
		if link, err := findVXLAN(netlink, name); err == nil && link != nil && link.VxlanId == vnis[name] {
			parts = append(parts, "link "+name)
		}
	}
	if link, err := findWireGuard(netlink); err == nil && link != nil {
		parts = append(parts, "link "+wgLink)
	}
	routes, err := readRoutes(netlink, nil)
	if err != nil {
		return nil, err
	}
	count := 0
	for _, same := range routes.routes {
		count += len(same)
	}
	if count > 0 {
		parts = append(parts, fmt.Sprintf("%d routes of protocol %d", count, cni.RouteProtocol))
	}
	for _, path := range []string{filepath.Join(n.CNIConfDir, configName), filepath.Join(n.CNIBinDir, cni.PluginName)} {
		if _, err := os.Lstat(path); err == nil {
			parts = append(parts, path)
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("look for the CNI plugin: %w", err)
		}
	}
	return parts, nil
}
