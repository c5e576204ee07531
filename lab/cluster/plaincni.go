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

// podNetworkBridge is the one of PodNetworks that is not ours: the reference plugins bridge and host-local on the nodes,
// and between them the switch, which knows where pods are, as a cloud's routes do. So a reboot of a node takes no route away.
const podNetworkBridge = "bridge"

// referencePlugins are what podNetworkBridge runs.
var referencePlugins = []string{"bridge", "host-local", "loopback"}

// checkPlugins returns what podNetworkBridge lacks.
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

// plainCNI gives a node that has podCIDRs the reference plugins and their configuration, unless it has them.
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
	// Whole, when containerd sees it.
	if err := replaceFile(conf, bytes.NewReader(text), 0o644); err != nil {
		return fmt.Errorf("configure CNI on %s: %w", n.Name, err)
	}
	return nil
}
