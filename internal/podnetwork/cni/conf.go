package cni

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
)

// DefaultStateDir is the directory of host-local's address store if the configuration names none. It is on /run,
// because a restart of the machine ends the pods' namespaces, and their addresses must be forgotten too.
const DefaultStateDir = "/run/fairway/cni"

// maxNetworkName limits the network's name so that it fits into a link's alias (255 bytes). GC finds the network of a
// link by its alias.
const maxNetworkName = 100

// netConf is one plugin's part of a network configuration.
type netConf struct {
	types.PluginConf
	// MTU of the pod's link in bytes; 0 takes that of the node's default route.
	MTU int `json:"mtu"`
	// PolicySocket is the socket at which the plugin asks the agent to isolate a pod. Empty: it does not ask.
	PolicySocket string `json:"policySocket"`

	IPAM ipamConf `json:"ipam"`
	// RuntimeConfig has the runtime's values for the capabilities of the configuration.
	RuntimeConfig struct {
		PortMappings []runtimeMapping `json:"portMappings"`
		Bandwidth    *bandwidth       `json:"bandwidth"`
	} `json:"runtimeConfig"`

	mappings []PortMapping // what RuntimeConfig asks for
}

// runtimeMapping is a PortMapping before its check.
type runtimeMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// ipamConf is the part of the ipam section that this package reads. host-local's own parser reads the ranges (see
// reserve), so that they mean the same here as there.
type ipamConf struct {
	Type    string `json:"type"`
	DataDir string `json:"dataDir"`
}

// parseConf reads the part of the configuration that every verb needs. It does not read the ranges, because DEL and GC
// must work for a network whose podCIDRs have gone.
func parseConf(stdin []byte) (*netConf, error) {
	conf := &netConf{}
	if err := json.Unmarshal(stdin, conf); err != nil {
		return nil, failf(types.ErrDecodingFailure, "read network configuration: %v", err)
	}
	if len(conf.Name) > maxNetworkName {
		return nil, failf(types.ErrInvalidNetworkConfig, "network name has %d characters, at most %d are possible (choose a shorter name)", len(conf.Name), maxNetworkName)
	}
	if conf.IPAM.Type != "" && conf.IPAM.Type != "host-local" {
		return nil, failf(types.ErrUnsupportedField, "ipam type %q is not supported [use \"host-local\": it is built in]", conf.IPAM.Type)
	}
	if conf.MTU < 0 || conf.MTU > 65535 {
		return nil, failf(types.ErrInvalidNetworkConfig, "mtu %d is not possible [use 0 for that of the uplink, or 1280 to 65535]", conf.MTU)
	}
	if conf.IPAM.DataDir == "" {
		conf.IPAM.DataDir = DefaultStateDir
	}
	return conf, nil
}

// withDataDir writes the default state directory into the configuration, because
// host-local's parser would fall back to its own.
func withDataDir(stdin []byte, dir string) ([]byte, error) {
	var all map[string]any
	if err := json.Unmarshal(stdin, &all); err != nil {
		return nil, fmt.Errorf("read network configuration: %w", err)
	}
	if ipam, ok := all["ipam"].(map[string]any); ok {
		ipam["dataDir"] = dir
	}
	return json.Marshal(all)
}

// podName returns "namespace/name" of the pod, or "" if the runtime does not pass it.
func podName(cniArgs string) string {
	namespace, name := argument(cniArgs, "K8S_POD_NAMESPACE"), argument(cniArgs, "K8S_POD_NAME")
	if namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// failf makes an error of the CNI specification. Codes below 100 belong to the specification. Other errors have the
// code ErrInternal.
func failf(code uint, format string, args ...any) *types.Error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}
