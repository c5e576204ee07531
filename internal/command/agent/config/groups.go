package config

import (
	"slices"
	"strings"
)

// The groups of flags in help texts.
const (
	groupCommand   = "Flags of this command"
	groupMode      = "Mode"
	groupAddresses = "Addresses"
	groupLimits    = "Limits and safety"
	groupAPI       = "API server"
	groupNode      = "Node settings"
	groupPods      = "Pod network"
	groupOperation = "Logs, health, metrics"
	groupTiming    = "Timing"
)

// groups lists the flags of each group in the order of the help text. Other flags belong to the command itself.
var groups = []struct {
	name  string
	flags []string
}{
	{groupCommand, nil},
	{groupMode, []string{"proxy-mode", "replace-kube-proxy", "config", "settings-dir", "cleanup", "after-kube-proxy", "count-traffic", "ipvs-scheduler", "nftables-masquerade-bit"}},
	{groupAddresses, []string{"cluster-cidr", "detect-local-mode", "pod-bridge-interface", "pod-interface-name-prefix", "nodeport-addresses", "bind-address", "hostname-override", "masquerade-all"}},
	{groupLimits, []string{"refuse-external-ips", "service-limits", "empty-after", "ejection"}},
	{groupAPI, []string{"kubeconfig", "context", "master", "allow-http-api-server", "kube-api-burst", "kube-api-qps", "kube-api-content-type"}},
	{groupPods, []string{"pod-network", "non-masquerade-cidrs", "egress-addresses", "network-policy", "network-policy-log", "network-policy-reject", "cni-bin-dir", "cni-conf-dir", "pod-fragments"}},
	{groupNode, []string{"oom-score-adj", "ipvs-tcp-timeout", "ipvs-tcpfin-timeout", "ipvs-udp-timeout"}},
	{groupTiming, []string{"sync-period", "min-sync-period"}},
	{groupOperation, []string{"v", "log-level", "log-format", "healthz-bind-address", "metrics-bind-address"}},
}

// Groups returns the titles of all groups, in the order of a help text.
func Groups() (names []string) {
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// Group returns the group of a flag.
func Group(flag string) string {
	if strings.HasPrefix(flag, "conntrack-") {
		return groupNode
	}
	for _, g := range groups {
		if slices.Contains(g.flags, flag) {
			return g.name
		}
	}
	return groupCommand
}
