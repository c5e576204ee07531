package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Config describes one node. The node's processes read it from the file config.json in Dir.
type Config struct {
	Name       string       // the Kubernetes name, also the host name
	Dir        string       // the node's own files
	Logs       string       // directory of log files, one per process
	Cgroup     string       // parent of all of the node's cgroups, from the root of each hierarchy
	Addresses  []netip.Addr // primary first
	Kubeconfig string       // of the kubelet
	PKI        string       // directory with ca.crt and the kubelet's serving certificate kubelet-NAME
	DNS        []netip.Addr // cluster DNS
	Upstream   netip.Addr   // name server in the machine's own resolv.conf
	Labels     string       // for the Node object, as in --node-labels
}

// SandboxImage is the image of the container that holds a pod's namespaces.
const SandboxImage = "registry.k8s.io/pause:3.10"

// The node's sockets, as paths inside the node.
const (
	containerdSocket = "/run/containerd/containerd.sock"
	imageSocket      = "/run/fairway-lab/images.sock"
)

func (c Config) path(elem ...string) string {
	return filepath.Join(append([]string{c.Dir}, elem...)...)
}

// Save writes the file that Load reads.
func (c Config) Save() error {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("create node directory: %w", err)
	}
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode node: %w", err)
	}
	if err := os.WriteFile(c.path("config.json"), data, 0o644); err != nil {
		return fmt.Errorf("write node: %w", err)
	}
	return nil
}

// Load reads the configuration of the node whose files are in dir.
func Load(dir string) (Config, error) {
	var c Config
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return c, fmt.Errorf("read node: %w", err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("decode node: %w", err)
	}
	return c, nil
}
