package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/podnetwork/cni"
)

// configName sorts before the files of distributions, because a runtime uses the first file.
const configName = "10-fairway.conflist"

// temporary is the prefix of unfinished files. A crash may leave one, and the next Sync removes it. Runtimes ignore
// files with unknown names.
const temporary = ".fairway-tmp-"

// fileState changes when a file is replaced or written.
type fileState struct {
	size     int64
	modified time.Time
}

func stateOf(path string) (fileState, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}, err
	}
	return fileState{info.Size(), info.ModTime()}, nil
}

// installPlugin copies the plugin to the runtime's plugin directory. If there is no loopback plugin, the plugin gets
// that name too: containerd refuses to start pods without it, and a fresh machine has none.
func (n *Network) installPlugin() error {
	source, err := n.plugin()
	if err != nil {
		return err
	}
	target := filepath.Join(n.CNIBinDir, cni.PluginName)
	if err := n.copyPlugin(source, target); err != nil {
		return fmt.Errorf("install the CNI plugin: %w [mount the host's %s into the agent, writable]", err, n.CNIBinDir)
	}
	loopback := filepath.Join(n.CNIBinDir, cni.LoopbackName)
	if _, err := os.Lstat(loopback); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// A relative link means the same on the host and in a container.
	if err := os.Symlink(cni.PluginName, loopback); err != nil {
		return fmt.Errorf("install the loopback plugin: %w", err)
	}
	return nil
}

// plugin returns the path of the program to install.
func (n *Network) plugin() (string, error) {
	path := n.Plugin
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find this program: %w", err)
		}
		path = filepath.Join(filepath.Dir(self), cni.PluginName)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("find the CNI plugin: %w [it belongs beside the program fairway, as in the image; `make build` makes both]", err)
	}
	return path, nil
}

// copyPlugin compares the contents once. Later it only looks whether a file was touched.
func (n *Network) copyPlugin(source, target string) error {
	from, err := stateOf(source)
	if err != nil {
		return err
	}
	to, err := stateOf(target)
	if err == nil && n.installed == [2]fileState{from, to} {
		return nil
	}
	if err != nil || from.size != to.size || !sameContent(source, target) {
		if err := os.MkdirAll(n.CNIBinDir, 0o755); err != nil {
			return err
		}
		in, err := os.Open(source)
		if err != nil {
			return err
		}
		defer in.Close()
		// The new file is renamed into place, because a runtime may be executing the old one.
		if err := writeAtomically(target, in, 0o755); err != nil {
			return err
		}
		if to, err = stateOf(target); err != nil {
			return err
		}
		n.Log.Info("installed the CNI plugin", "path", target)
	}
	n.installed = [2]fileState{from, to}
	return nil
}

func sameContent(a, b string) bool {
	fileA, err := os.Open(a)
	if err != nil {
		return false
	}
	defer fileA.Close()
	fileB, err := os.Open(b)
	if err != nil {
		return false
	}
	defer fileB.Close()
	bufA, bufB := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		sizeA, errA := io.ReadFull(fileA, bufA)
		sizeB, errB := io.ReadFull(fileB, bufB)
		if !bytes.Equal(bufA[:sizeA], bufB[:sizeB]) {
			return false
		}
		if errA != nil || errB != nil {
			return errA == errB && (errA == io.EOF || errA == io.ErrUnexpectedEOF)
		}
	}
}

// writeAtomically replaces a file by a complete one.
func writeAtomically(path string, content io.Reader, mode os.FileMode) error {
	dir := filepath.Dir(path)
	removeTemporary(dir)
	file, err := os.CreateTemp(dir, temporary)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	err = errors.Join(err, file.Chmod(mode), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return err
}

func removeTemporary(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, temporary+"*"))
	for _, file := range left {
		os.Remove(file)
	}
}

func (n *Network) removePlugin() error {
	removeTemporary(n.CNIBinDir)
	var failed error
	loopback := filepath.Join(n.CNIBinDir, cni.LoopbackName)
	if to, err := os.Readlink(loopback); err == nil && to == cni.PluginName {
		failed = os.Remove(loopback)
	}
	return errors.Join(failed, removeFile(filepath.Join(n.CNIBinDir, cni.PluginName)))
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}

func (n *Network) removeConfig() error {
	removeTemporary(n.CNIConfDir)
	return removeFile(filepath.Join(n.CNIConfDir, configName))
}

// configure lets the runtime start pods, and then tells Ready.
func (n *Network) configure(ctx context.Context, nodeName string, own []netip.Prefix, mtu int) error {
	if err := n.syncConfig(nodeName, own, mtu); err != nil || len(own) == 0 || n.Ready == nil {
		return err
	}
	return n.Ready(ctx)
}

// syncConfig writes the network configuration. It removes it while the node has no podCIDR: then kubelet reports
// "network plugin not ready", which is true.
func (n *Network) syncConfig(nodeName string, own []netip.Prefix, mtu int) error {
	if len(own) == 0 {
		return n.removeConfig()
	}
	text, err := renderConfig(filepath.Join(n.StateDir, nodeName), own, mtu, n.hostPorts(), n.PolicySocket)
	if err != nil {
		return fmt.Errorf("render the CNI configuration: %w", err)
	}
	path := filepath.Join(n.CNIConfDir, configName)
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, text) {
		return nil
	}
	err = os.MkdirAll(n.CNIConfDir, 0o755)
	if err == nil {
		err = writeAtomically(path, bytes.NewReader(text), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the CNI configuration: %w [mount the host's %s into the agent, writable]", err, n.CNIConfDir)
	}
	n.Log.Info("wrote the CNI configuration", "path", path, "podCIDRs", api.JoinPrefixes(own), "mtu", mtu)
	return nil
}

// hostPorts is the program that serves the hostPorts of pods.
type hostPorts int

const (
	noPorts       hostPorts = iota
	recordedPorts           // our plugin records them, and the Service proxy serves them: package hostport
	portmapPorts            // the reference plugin portmap, chained
)

// hostPorts returns the program that can serve them here.
func (n *Network) hostPorts() hostPorts {
	if n.RecordHostPorts {
		return recordedPorts
	}
	if _, err := os.Stat(filepath.Join(n.CNIBinDir, "portmap")); err == nil {
		return portmapPorts
	}
	return noPorts
}

// renderConfig returns the network's configuration for a runtime. Runtimes that know cniVersions choose 1.1.0, and use
// GC and STATUS. Older ones, for example containerd 1.6, ignore the list and refuse any cniVersion above 1.0.0.
func renderConfig(stateDir string, own []netip.Prefix, mtu int, ports hostPorts, policySocket string) ([]byte, error) {
	type object = map[string]any
	// There is one set for each family, and the plugin takes one address from each set. The family of the first podCIDR
	// comes first.
	var ranges [][]object
	first4 := own[0].Addr().Is4()
	for _, is4 := range []bool{first4, !first4} {
		var set []object
		for _, cidr := range own {
			if cidr.Addr().Is4() == is4 {
				set = append(set, object{"subnet": cidr.String()})
			}
		}
		if set != nil {
			ranges = append(ranges, set)
		}
	}
	plugins := []object{{
		"type": cni.PluginName,
		"mtu":  mtu,
		"ipam": object{"type": "host-local", "dataDir": stateDir, "ranges": ranges},
	}}
	capabilities := object{"bandwidth": true}
	plugins[0]["capabilities"] = capabilities
	if policySocket != "" {
		plugins[0]["policySocket"] = policySocket
	}
	switch ports {
	case recordedPorts:
		capabilities["portMappings"] = true
	case portmapPorts:
		plugins = append(plugins, object{"type": "portmap", "capabilities": object{"portMappings": true}})
	}
	text, err := json.MarshalIndent(object{
		"cniVersion":  "1.0.0",
		"cniVersions": []string{"1.0.0", "1.1.0"},
		"name":        "fairway",
		"plugins":     plugins,
	}, "", "  ")
	return append(text, '\n'), err
}
