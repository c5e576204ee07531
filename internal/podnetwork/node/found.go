package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairway-net/fairway/internal/podnetwork/cni"
	"github.com/fairway-net/fairway/internal/podnetwork/node/tunnel"
)

// Found lists the remains of a Network on this machine, with names that an administrator can look for: "table inet
// fairway-pods", "8 routes of protocol 70". Nil: there are none.
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
	for _, name := range []string{tunnel.VXLANLink, tunnel.EgressLink} {
		if link, err := tunnel.FindVXLAN(netlink, name); err == nil && link != nil && tunnel.IsOurs(link) {
			parts = append(parts, "link "+name)
		}
	}
	if link, err := tunnel.FindWireGuard(netlink); err == nil && link != nil {
		parts = append(parts, "link "+tunnel.WireGuardLink)
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
