package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// hostPortsDir is the directory of records below a node's address store. It has one file for each attachment with host
// ports, with the name of the host side link.
const hostPortsDir = "hostports"

// maxHostPorts limits the ports of a record. The API has no limit.
const maxHostPorts = 1000

// maxRecord is the largest size of a record's file, in bytes.
const maxRecord = 256 << 10

// A PortMapping maps a port of the node to a container's port, as runtimes write it into runtimeConfig for the
// capability "portMappings".
type PortMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`         // "tcp", "udp", "sctp"
	HostIP        string `json:"hostIP,omitempty"` // empty, 0.0.0.0 or ::: all of the node's addresses
}

// A HostPorts record has the host ports of one attachment. The plugin writes it, the agent reads it.
type HostPorts struct {
	Network   string        `json:"network"`
	Pod       string        `json:"pod"`           // namespace/name; the container's ID if the runtime names no pod
	UID       string        `json:"uid,omitempty"` // of the pod; empty if the runtime does not pass it
	Addresses []netip.Addr  `json:"addresses"`
	Ports     []PortMapping `json:"ports"`
	Created   time.Time     `json:"created"`
}

// HostPortsDir returns the directory of a store's records.
func HostPortsDir(dataDir string) string { return filepath.Join(dataDir, hostPortsDir) }

// ReadHostPorts returns the records in a directory. With an error it still returns the records that it could read. A
// directory that does not exist has none.
func ReadHostPorts(dir string) ([]HostPorts, error) {
	names, err := recordNames(dir)
	var all []HostPorts
	for _, name := range names {
		r, readErr := readHostPorts(filepath.Join(dir, name))
		switch {
		case errors.Is(readErr, os.ErrNotExist): // the pod has just gone
		case readErr != nil:
			err = errors.Join(err, readErr)
		default:
			all = append(all, r)
		}
	}
	return all, err
}

// recordNames lists the records, which have the names of links.
func recordNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list host ports: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), linkPrefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func readHostPorts(path string) (r HostPorts, err error) {
	file, err := os.Open(path)
	if err != nil {
		return r, fmt.Errorf("read host ports: %w", err)
	}
	defer file.Close()
	if err := json.NewDecoder(io.LimitReader(file, maxRecord)).Decode(&r); err != nil {
		return r, fmt.Errorf("read host ports: %s: %w [delete the pod to have it wired again]", path, err)
	}
	return r, nil
}

// checkMappings returns the runtime's mappings without the ones that map no host port.
func checkMappings(asked []runtimeMapping) ([]PortMapping, error) {
	var all []PortMapping
	for _, m := range asked {
		if m.HostPort == 0 {
			continue // the pod only declares its port
		}
		p := PortMapping{Protocol: strings.ToLower(m.Protocol), HostIP: m.HostIP}
		if p.Protocol == "" {
			p.Protocol = "tcp"
		}
		switch p.Protocol {
		case "tcp", "udp", "sctp":
		default:
			return nil, failf(types.ErrInvalidNetworkConfig, "portMappings: protocol %q is not tcp, udp or sctp", m.Protocol)
		}
		if !isPort(m.HostPort) || !isPort(m.ContainerPort) {
			return nil, failf(types.ErrInvalidNetworkConfig, "portMappings: hostPort %d, containerPort %d: ports are numbers from 1 to 65535", m.HostPort, m.ContainerPort)
		}
		if m.HostIP != "" {
			ip, err := netip.ParseAddr(m.HostIP)
			if err != nil || ip.Zone() != "" {
				return nil, failf(types.ErrInvalidNetworkConfig, "portMappings: hostIP %q is not an address", m.HostIP)
			}
			p.HostIP = ip.Unmap().String()
		}
		p.HostPort, p.ContainerPort = uint16(m.HostPort), uint16(m.ContainerPort)
		all = append(all, p)
	}
	if len(all) > maxHostPorts {
		return nil, failf(types.ErrInvalidNetworkConfig, "the pod asks for %d host ports, at most %d are possible", len(all), maxHostPorts)
	}
	return all, nil
}

func isPort(n int) bool { return n > 0 && n < 1<<16 }

// writeHostPorts writes the record of the attachment, or none if there are no ports. A repeated ADD replaces the record
// of the previous one.
func writeHostPorts(conf *netConf, a attachment, cniArgs string, addrs []netip.Addr) error {
	if len(conf.mappings) == 0 {
		return removeHostPorts(conf, a)
	}
	r := HostPorts{Network: a.network, Pod: podName(cniArgs), UID: argument(cniArgs, "K8S_POD_UID"), Addresses: addrs, Ports: conf.mappings, Created: time.Now()}
	if r.Pod == "" {
		r.Pod = a.containerID
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record host ports: %w", err)
	}
	dir := HostPortsDir(conf.IPAM.DataDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("record host ports: %w", err)
	}
	// The file is renamed into place, so that a reader finds a whole record or none. Only this attachment uses the
	// name, and its next ADD or DEL removes the file of a killed plugin.
	unfinished := filepath.Join(dir, unfinishedRecord(a.hostLink()))
	if err := os.WriteFile(unfinished, text, 0o600); err != nil {
		return errors.Join(fmt.Errorf("record host ports: %w", err), os.Remove(unfinished))
	}
	if err := os.Rename(unfinished, filepath.Join(dir, a.hostLink())); err != nil {
		return fmt.Errorf("record host ports: %w", err)
	}
	return nil
}

// checkHostPorts compares the attachment's record with the mappings of the runtime.
func checkHostPorts(conf *netConf, a attachment) error {
	asked, err := checkMappings(conf.RuntimeConfig.PortMappings)
	if err != nil || len(asked) == 0 {
		return err
	}
	r, err := readHostPorts(filepath.Join(HostPortsDir(conf.IPAM.DataDir), a.hostLink()))
	if err != nil {
		return failf(codeHostPorts, "%v %s", err, advice)
	}
	if !slices.Equal(r.Ports, asked) {
		return failf(codeHostPorts, "the host ports are recorded as %v, not %v %s", r.Ports, asked, advice)
	}
	return nil
}

func unfinishedRecord(link string) string { return "." + link }

// removeHostPorts removes the attachment's record; it is no error if there is none.
func removeHostPorts(conf *netConf, a attachment) error {
	dir, failed := HostPortsDir(conf.IPAM.DataDir), error(nil)
	for _, name := range []string{a.hostLink(), unfinishedRecord(a.hostLink())} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("remove host ports: %w", err))
		}
	}
	return failed
}

// gcHostPorts removes the network's records whose links are not valid, and records that no reader understands.
func gcHostPorts(conf *netConf, valid map[string]bool) error {
	dir := HostPortsDir(conf.IPAM.DataDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list host ports: %w", err)
	}
	var failed error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if valid[strings.TrimPrefix(e.Name(), ".")] {
			continue
		}
		if r, err := readHostPorts(path); err == nil && r.Network != conf.Name {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("remove host ports: %w", err))
		}
	}
	return failed
}
