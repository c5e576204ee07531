package peers

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/testing/scenario"
)

// A configuration is what both programs are started with; seeds take turns.
type configuration struct {
	name       string
	mode, ours string // kube-proxy's mode, and ours
	yaml       string
	one        bool // the node has no IPv6 address that the API knows
	// pods are those that the programs find by other means than these prefixes.
	pods []netip.Prefix
}

// The configurations that tests name.
const (
	podsKnown     = "pods known"
	somePodsKnown = "pods of IPv4 known, NodePorts on all"
	rangeOnly     = "pods unknown, NodePorts on a range"
	masqueradeAll = "masquerade all"
)

const podRanges = "clusterCIDR: 10.244.0.0/16,fd00:10:244::/48\n"

var configurations = []configuration{
	{name: podsKnown, mode: "nftables", ours: "nftables", yaml: podRanges + `nodePortAddresses: [primary]`},
	{name: somePodsKnown, mode: "nftables", ours: "nftables", yaml: `
clusterCIDR: 10.244.0.0/16
nodePortAddresses: ["0.0.0.0/0", "::/0"]`},
	{name: rangeOnly, mode: "nftables", ours: "nftables", yaml: `
nodePortAddresses: ["192.0.2.0/24", "2001:db8:2::/64"]`},
	{name: masqueradeAll, mode: "nftables", ours: "nftables", yaml: podRanges + `nodePortAddresses: [primary]`},
	{name: "node with IPv4 only", mode: "nftables", ours: "nftables", one: true, yaml: podRanges + `nodePortAddresses: [primary]`},
	{name: "pods by the node's ranges", mode: "nftables", ours: "nftables", yaml: `
detectLocalMode: NodeCIDR
nodePortAddresses: [primary, "192.0.2.0/24"]`},
	{name: "pods by the names of their links", mode: "nftables", ours: "nftables", yaml: `
detectLocalMode: InterfaceNamePrefix
detectLocal: {interfaceNamePrefix: veth}
nodePortAddresses: [primary]`,
		pods: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")}},
	// The only link that has this name is the first pod's.
	{name: "pods behind one link", mode: "nftables", ours: "nftables", yaml: `
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: veth1}
nodePortAddresses: [primary]`,
		pods: []netip.Prefix{netip.PrefixFrom(scenario.World.Pod.V4, 32), netip.PrefixFrom(scenario.World.Pod.V6, 128)}},
	{name: "kube-proxy in mode iptables", mode: "iptables", ours: "nftables",
		yaml: podRanges + `nodePortAddresses: ["172.18.0.0/16", "fd00:172:18::/64"]`},
}

// otherModes are ours against kube-proxy's nftables, with a few seeds each. Mode userspace
// is none of them: it answers a SYN itself, and asks an endpoint when the connection is
// there, which a probe's never is. Mode ipvs needs another kernel.
var otherModes = []configuration{
	{name: "our mode iptables", mode: "nftables", ours: "iptables", yaml: podRanges + `nodePortAddresses: [primary]`},
}

// configured returns the configuration of a name.
func configured(name string) configuration {
	return configurations[slices.IndexFunc(configurations, func(c configuration) bool { return c.name == name })]
}

// file writes the KubeProxyConfiguration of a mode. It leaves the sysctls of conntrack
// alone, which are the machine's.
func (c configuration) file(t testing.TB, mode string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: node-1
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 1ms, syncPeriod: 30s, masqueradeAll: %[2]v}
iptables: {minSyncPeriod: 1ms, syncPeriod: 30s, masqueradeAll: %[2]v, localhostNodePorts: false}
%s
`, mode, c.name == masqueradeAll, c.yaml)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// load reads a file as our agent does.
func load(t testing.TB, path string) *config.Config {
	t.Helper()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags := config.NewFlags(fs)
	if err := fs.Parse([]string{"--config", path}); err != nil {
		t.Fatal(err)
	}
	cfg, err := flags.Load()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
