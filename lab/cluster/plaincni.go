package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// podNetworkBridge uses the reference plugins bridge and host-local instead of Fairway's pod network. Between the
// nodes, the switch has the routes to pods, as the routes of a cloud do. A reboot of a node therefore removes no route.
const podNetworkBridge = "bridge"

// referencePlugins are the plugins that podNetworkBridge runs.
var referencePlugins = []string{"bridge", "host-local", "loopback"}

// checkPlugins returns an error if a plugin of podNetworkBridge is missing.
func (o Options) checkPlugins() error {
	if o.PodNetwork != podNetworkBridge {
		return nil
	}
	for _, name := range referencePlugins {
		if _, err := os.Stat(filepath.Join(o.CNIPlugins, name)); err != nil {
			return fmt.Errorf("--cni-plugins: %w [make cni-plugins builds them]", err)
		}
	}
	return nil
}

// plainCNI installs the reference plugins and their configuration on a node that has podCIDRs. A node with the
// configuration stays as it is.
func (b *builder) plainCNI(n *corev1.Node) error {
	if b.PodNetwork != podNetworkBridge || len(n.Spec.PodCIDRs) == 0 {
		return nil
	}
	conf := filepath.Join(b.nodeDir(n.Name), "fs/etc/cni/net.d/10-bridge.conflist")
	if _, err := os.Stat(conf); err == nil {
		return nil
	}
	for _, name := range referencePlugins {
		program, err := os.ReadFile(filepath.Join(b.CNIPlugins, name))
		if err != nil {
			return fmt.Errorf("give %s a CNI plugin: %w", n.Name, err)
		}
		if err := os.WriteFile(filepath.Join(b.nodeDir(n.Name), "fs/opt/cni/bin", name), program, 0o755); err != nil {
			return fmt.Errorf("give %s a CNI plugin: %w", n.Name, err)
		}
	}
	type object = map[string]any
	var ranges, routes []any
	for _, cidr := range n.Spec.PodCIDRs {
		ranges = append(ranges, []any{object{"subnet": cidr}})
		everywhere := "0.0.0.0/0"
		if strings.Contains(cidr, ":") {
			everywhere = "::/0"
		}
		routes = append(routes, object{"dst": everywhere})
	}
	text, err := json.MarshalIndent(object{"cniVersion": "1.0.0", "name": "bridge", "plugins": []any{object{
		"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
		"ipam": object{"type": "host-local", "dataDir": "/run/cni", "ranges": ranges, "routes": routes},
	}}}, "", "  ")
	if err != nil {
		return fmt.Errorf("configure CNI on %s: %w", n.Name, err)
	}
	// containerd must not see a partly written file.
	if err := replaceFile(conf, bytes.NewReader(text), 0o644); err != nil {
		return fmt.Errorf("configure CNI on %s: %w", n.Name, err)
	}
	return nil
}
