package install

import (
	"fmt"
	"strings"

	"github.com/fairway-net/fairway/internal/operate/settings"
)

// The keys of the ConfigMap fairway-agent that this package decides. It passes other settings through.
const (
	keyAPIServer   = "FAIRWAY_API_SERVER"
	keyClusterCIDR = "CLUSTER_CIDR"
	keyMode        = "PROXY_MODE"
	keyReplace     = "REPLACE_KUBE_PROXY"
	keyExternalIPs = "REFUSE_EXTERNAL_IPS"
	keyPodNetwork  = "POD_NETWORK"
	keyPolicies    = "NETWORK_POLICY"
	keyEgress      = "EGRESS_ADDRESSES"
	keyGateways    = "GATEWAY"
)

// The words of options that are not values.
const (
	Auto    = "auto" // detected from the cluster
	fairway = "fairway"
	none    = "none"
	routes  = "routes"

	byRouters = "bgp"

	yes = "true"
	no  = "false"
)

// Options are the user's wishes. An empty option is detected, or keeps its value.
type Options struct {
	Image            string            // of the agent and of DNS, with a tag or a digest
	Components       []string          // of deploy/components, in addition to those that the settings select
	Without          []string          // components to leave out from now on
	DNS              string            // auto, fairway, none
	APIServer        string            // URL
	ClusterCIDR      string            // one prefix, or two with a comma
	ProxyMode        string            //
	PodNetwork       string            // auto, none, routes, vxlan, wireguard, bgp
	ReplaceKubeProxy string            // auto, true, false
	RefuseExternal   string            // true, false
	Set              map[string]string // more settings by their keys; an empty value means the default
}

// Settings are the input of one revision.
type Settings struct {
	Image      string            `json:"image"`
	Components []string          `json:"components,omitempty"`
	DNS        bool              `json:"dns"`                  // whether the Deployment fairway-dns runs
	DNSService []string          `json:"dnsService,omitempty"` // addresses of the Service kube-dns, if this program created it
	Values     map[string]string `json:"values"`               // of the ConfigMap fairway-agent
}

// chosen returns the settings that the user has decided in words.
func (o Options) chosen() (keys []string) {
	if o.RefuseExternal != "" || o.Set[keyExternalIPs] != "" {
		keys = append(keys, keyExternalIPs)
	}
	return keys
}

// apply overwrites values with the options.
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
		setting, known := settings.For(key)
		if !known {
			return fmt.Errorf("--set %s: there is no such setting [choose from %s]", key, strings.Join(settings.Keys(), ", "))
		}
		values[key] = setting.OrDefault(value)
	}
	return nil
}
