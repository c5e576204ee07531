package read

import (
	"slices"

	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// A Chain is one chain of one table of a family.
type Chain struct{ Table, Name string }

// The tables in which mode iptables has chains.
const NAT, Filter = "nat", "filter"

// OffCluster is the chain that marks packets of clients that are not pods. Its name begins like a Service's chain, so
// that kube-proxy removes it when it takes over.
const OffCluster = xtables.KubeEXT + "OFF-CLUSTER"

// Constant returns the chains of a table that mode iptables always has. All except FAIRWAY and OffCluster are
// kube-proxy's.
func Constant(table string) []string {
	switch table {
	case NAT:
		return []string{xtables.KubeServices, xtables.KubeNodePorts, xtables.KubePostrouting, xtables.KubeMarkMasq, OffCluster, xtables.FairwaySettings}
	case Filter:
		return []string{xtables.KubeServices, xtables.KubeExternalServices, xtables.KubeNodePorts, xtables.KubeForward, xtables.KubeProxyFirewall}
	}
	return nil
}

// IsOurs reports whether mode iptables writes or replaces a chain: a constant chain, a chain of a Service, or
// kube-proxy's canary. A Sync removes the canary, so the canary shows that kube-proxy has written since. Other chains
// with a name KUBE-, like the kubelet's KUBE-KUBELET-CANARY, are not ours.
func IsOurs(c Chain) bool {
	return slices.Contains(Constant(c.Table), c.Name) || c.Table == NAT && (c.Name == xtables.KubeProxyCanary || xtables.PerService(c.Name))
}

// A Hook is a rule of another program's chain, or of a base chain, that leads to one of our chains.
type Hook struct {
	In   Chain
	Rule string // the text behind "-A CHAIN"

	Handle uint64 // the kernel's number of the rule; 0 if unknown, and with iptables-legacy
}

// Same reports whether two hooks are equal except for their handles.
func (h Hook) Same(o Hook) bool { return h.In == o.In && h.Rule == o.Rule }
