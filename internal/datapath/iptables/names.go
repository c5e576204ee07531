package iptables

import (
	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/kernel/xtables"
)

// A chain is one chain of one table of a family.
type chain struct{ table, name string }

// Tables.
const nat, filter = "nat", "filter"

// Chains that are always there. All but the last are kube-proxy's.
const (
	services   = xtables.KubeServices
	nodeports  = xtables.KubeNodePorts
	postroute  = xtables.KubePostrouting
	markMasq   = xtables.KubeMarkMasq
	externals  = xtables.KubeExternalServices
	forward    = xtables.KubeForward
	firewall   = xtables.KubeProxyFirewall
	recordings = xtables.FairwaySettings // no packet comes here: its comments are the settings
)

// markOffCluster marks what is of no pod. Its name begins as those of chains of Services: a former release,
// and kube-proxy, remove such a chain where they have no Service for it.
const markOffCluster = ext + "OFF-CLUSTER"

// canary is a chain by which kube-proxy notices that its rules were flushed. Sync removes
// it, so where it exists, kube-proxy has written after us and holds the chains now.
const canary = xtables.KubeProxyCanary

// Beginnings of the names of chains of one Service port.
const (
	svc = xtables.KubeSVC
	svl = xtables.KubeSVL
	ext = xtables.KubeEXT
	fw  = xtables.KubeFW
	sep = xtables.KubeSEP
)

// isOurs reports whether a chain is one of those that we write. KUBE-KUBELET-CANARY and
// others of kubelet's are not.
func isOurs(c chain) bool {
	for _, name := range constantNames(c.table) {
		if c.name == name {
			return true
		}
	}
	return c.table == nat && (c.name == canary || xtables.PerService(c.name))
}

// constantNames are the chains that are always there.
func constantNames(table string) []string {
	switch table {
	case nat:
		return []string{services, nodeports, postroute, markMasq, markOffCluster, recordings}
	case filter:
		return []string{services, externals, nodeports, forward, firewall}
	}
	return nil
}

// hash ends the name of a chain: of the Service port, the protocol, and whatever else
// distinguishes the chain.
func hash(name api.PortName, proto api.Proto, more ...string) string {
	return xtables.Hash(append([]string{name.String(), lower(proto)}, more...)...)
}

// maxMark is the largest number of an endpoint's chain or of a list: the bits above it
// distinguish our marks from those of other programs.
const maxMark = numbers.ConnMarkNumber
