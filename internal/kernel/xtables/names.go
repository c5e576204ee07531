package xtables

import (
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"
)

// Tables are iptables' tables.
var Tables = []string{"raw", "mangle", "nat", "filter", "security"}

// Chains of kube-proxy's mode iptables that do not depend on Services.
const (
	KubeServices         = "KUBE-SERVICES"
	KubeNodePorts        = "KUBE-NODEPORTS"
	KubePostrouting      = "KUBE-POSTROUTING"
	KubeMarkMasq         = "KUBE-MARK-MASQ"
	KubeExternalServices = "KUBE-EXTERNAL-SERVICES"
	KubeForward          = "KUBE-FORWARD"
	KubeProxyFirewall    = "KUBE-PROXY-FIREWALL"
	// KubeProxyCanary is a chain of kube-proxy. If it is missing, kube-proxy knows that its rules were flushed.
	KubeProxyCanary = "KUBE-PROXY-CANARY"
)

// Prefixes of the names of chains of one Service port. kubeXLB is the prefix before Kubernetes 1.24 of KubeSVL.
const (
	KubeSVC = "KUBE-SVC-" // all endpoints
	KubeSVL = "KUBE-SVL-" // endpoints of this node
	KubeEXT = "KUBE-EXT-" // traffic from outside
	KubeFW  = "KUBE-FW-"  // loadBalancerSourceRanges
	KubeSEP = "KUBE-SEP-" // one endpoint
	kubeXLB = "KUBE-XLB-"
)

// FairwaySettings is a chain in table nat that only Fairway's mode iptables writes. If it exists, the chains with
// kube-proxy's names are Fairway's.
const FairwaySettings = "FAIRWAY"

// fixed are the chains that kube-proxy's mode iptables always has, except the canary.
var fixed = []string{KubeServices, KubeExternalServices, KubeNodePorts, KubePostrouting, KubeMarkMasq, KubeForward, KubeProxyFirewall}

// onlyKubeProxys are chains of kube-proxy that Fairway's mode iptables does not use: the canary, and the chains of
// kube-proxy's mode ipvs.
var onlyKubeProxys = []string{
	KubeProxyCanary, "KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
}

// IsKubeProxys reports whether a chain has a name of kube-proxy, in mode iptables or ipvs. It is false for chains of
// other programs that begin with KUBE-: of the kubelet (KUBE-KUBELET-CANARY, KUBE-FIREWALL, KUBE-MARK-DROP), of
// container runtimes' host ports (KUBE-HOSTPORTS, KUBE-HP-…), and of kube-router.
func IsKubeProxys(chain string) bool {
	return slices.Contains(fixed, chain) || IsKubeProxysAlone(chain) || PerService(chain) || strings.HasPrefix(chain, kubeXLB)
}

// IsKubeProxysAlone reports whether a chain has a name of kube-proxy that Fairway's mode iptables does not use.
func IsKubeProxysAlone(chain string) bool { return slices.Contains(onlyKubeProxys, chain) }

// PerService reports whether a chain belongs to a Service port or to an endpoint, in kube-proxy's and in Fairway's mode
// iptables.
func PerService(chain string) bool {
	for _, prefix := range [...]string{KubeSVC, KubeSVL, KubeEXT, KubeFW, KubeSEP} {
		if strings.HasPrefix(chain, prefix) {
			return true
		}
	}
	return false
}

// Hash is kube-proxy's hash, for the end of a chain's name. The parts are the Service port as "namespace/name:port",
// the protocol in small letters and, for an endpoint's chain, the endpoint's address and port.
func Hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}
