package install

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// The keys of deploy/agent/config.yaml that this package decides itself. Others are passed
// through.
const (
	keyAPIServer   = "FAIRWAY_API_SERVER"
	keyClusterCIDR = "CLUSTER_CIDR"
	keyMode        = "PROXY_MODE"
	keyReplace     = "REPLACE_KUBE_PROXY"
	keyExternalIPs = "REFUSE_EXTERNAL_IPS"
	keyPodNetwork  = "POD_NETWORK"
)

// The words of options that are no value of their own.
const (
	Auto    = "auto" // found out from the cluster
	fairway = "fairway"
	none    = "none"
	routes  = "routes"

	byRouters = "bgp"

	yes = "true"
	no  = "false"
)

// Options are what the user asks for. An empty one is found out, or stays what it was.
type Options struct {
	Image            string            // of the agent and of DNS, with a tag or a digest
	Components       []string          // of deploy/components, beside those that the settings need
	Without          []string          // components of before that are left out from now on
	DNS              string            // auto, fairway, none
	APIServer        string            // URL
	ClusterCIDR      string            // one prefix, or two with a comma
	ProxyMode        string            //
	PodNetwork       string            // auto (found out), none, routes, vxlan, wireguard, bgp
	ReplaceKubeProxy string            // auto, true, false
	RefuseExternal   string            // true, false
	Set              map[string]string // further keys of the ConfigMap
}

// Settings are what one revision of an installation was rendered from.
type Settings struct {
	Image      string            `json:"image"`
	Components []string          `json:"components,omitempty"`
	DNS        bool              `json:"dns"`                  // the Deployment fairway-dns
	DNSService []string          `json:"dnsService,omitempty"` // addresses of the Service kube-dns, where there was none
	Values     map[string]string `json:"values"`               // of the ConfigMap fairway-agent
}

// Defaults are the settings of deploy/agent/config.yaml.
func Defaults(manifests fs.FS) (map[string]string, error) {
	text, err := fs.ReadFile(manifests, "agent/config.yaml")
	if err != nil {
		return nil, fmt.Errorf("read the manifests in this program: %w", err)
	}
	var config struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("read agent/config.yaml in this program: %w", err)
	}
	return config.Data, nil
}

// apply writes what the options name over the values.
func (o Options) apply(values map[string]string) error {
	for key, value := range map[string]string{
		keyAPIServer: o.APIServer, keyClusterCIDR: o.ClusterCIDR, keyMode: o.ProxyMode, keyExternalIPs: o.RefuseExternal,
	} {
		if value != "" {
			values[key] = value
		}
	}
	for key, value := range map[string]string{keyPodNetwork: o.PodNetwork, keyReplace: o.ReplaceKubeProxy} {
		if value != "" && value != Auto {
			values[key] = value
		}
	}
	for key, value := range o.Set {
		if _, ok := values[key]; !ok {
			return fmt.Errorf("--set %s: there is no such setting [choose from %s]", key, strings.Join(slices.Sorted(maps.Keys(values)), ", "))
		}
		values[key] = value
	}
	return nil
}
