package xtables

import (
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
)

// Tables are those that iptables has.
var Tables = []string{"raw", "mangle", "nat", "filter", "security"}

// Chains of kube-proxy's mode iptables that do not depend on KubeServices.
const (
	KubeServices         = "KUBE-SERVICES"
	KubeNodePorts        = "KUBE-NODEPORTS"
	KubePostrouting      = "KUBE-POSTROUTING"
	KubeMarkMasq         = "KUBE-MARK-MASQ"
	KubeExternalServices = "KUBE-EXTERNAL-SERVICES"
	KubeForward          = "KUBE-FORWARD"
	KubeProxyFirewall    = "KUBE-PROXY-FIREWALL"
	// KubeProxyCanary is a chain by which kube-proxy notices that its rules were flushed.
	KubeProxyCanary = "KUBE-PROXY-CANARY"
)

// Beginnings of the names of chains of one Service port.
const (
	KubeSVC = "KUBE-SVC-" // all endpoints
	KubeSVL = "KUBE-SVL-" // those of this node
	KubeEXT = "KUBE-EXT-" // traffic from outside
	KubeFW  = "KUBE-FW-"  // loadBalancerSourceRanges
	KubeSEP = "KUBE-SEP-" // one endpoint
	kubeXLB = "KUBE-XLB-" // policy Local, before Kubernetes 1.24
)

// FairwaySettings is the chain in table nat that mode iptables alone writes: where it is, chains
// with kube-proxy's names are ours.
const FairwaySettings = "FAIRWAY"

// fixed are the chains of Services that kube-proxy's mode iptables always has.
var fixed = []string{KubeServices, KubeExternalServices, KubeNodePorts, KubePostrouting, KubeMarkMasq, KubeForward, KubeProxyFirewall}

// foreign are those of kube-proxy's that our mode iptables has no use for: its canary, and
// the chains of its mode ipvs.
var foreign = []string{
	KubeProxyCanary, "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
}

// IsKubeProxys reports whether kube-proxy, in mode iptables or ipvs, gives this name to a
// chain. Other programs' begin with KUBE- as well: the kubelet's (KUBE-KUBELET-CANARY,
// KUBE-FIREWALL, KUBE-MARK-DROP), host ports of container runtimes (KUBE-HOSTPORTS,
// KUBE-HP-…), kube-router's.
func IsKubeProxys(chain string) bool {
	return slices.Contains(fixed, chain) || IsKubeProxysAlone(chain) || PerService(chain) || strings.HasPrefix(chain, kubeXLB)
}

// IsKubeProxysAlone reports whether kube-proxy gives this name to a chain, and our mode
// iptables does not.
func IsKubeProxysAlone(chain string) bool { return slices.Contains(foreign, chain) }

// PerService reports whether a chain is one of a Service port or of an endpoint, as our mode
// iptables has them too.
func PerService(chain string) bool {
	for _, prefix := range [...]string{KubeSVC, KubeSVL, KubeEXT, KubeFW, KubeSEP} {
		if strings.HasPrefix(chain, prefix) {
			return true
		}
	}
	return false
}

// Hash is kube-proxy's, for the end of a chain's name. The parts are a Service port as
// "namespace/name:port", the protocol in small letters and, of an endpoint's chain, its
// address and port.
func Hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}
