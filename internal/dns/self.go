package dns

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// ClusterCIDRs returns the pods' addresses, for Config.AllowFrom, from the environment variable
// CLUSTER_CIDR, which the Deployment takes from the agent's settings. Where there are none, there
// is nothing to add.
func ClusterCIDRs() (cidrs []netip.Prefix, err error) {
	for text := range strings.FieldsFuncSeq(os.Getenv("CLUSTER_CIDR"), func(r rune) bool { return r == ',' || r == ' ' }) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("read CLUSTER_CIDR: %w [write prefixes with commas between them, as 10.244.0.0/16]", err)
		}
		cidrs = append(cidrs, p.Masked())
	}
	return cidrs, nil
}

// ServiceIP returns the ClusterIP of the Service in front of this pod, for Config.Self: the
// kubelet passes it in the environment of pods in the Service's namespace. A node's
// resolv.conf may name it, and it leads back here.
func ServiceIP() []netip.Addr {
	ip, err := netip.ParseAddr(os.Getenv("KUBE_DNS_SERVICE_HOST"))
	if err != nil {
		return nil
	}
	return []netip.Addr{ip}
}
