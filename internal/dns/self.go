package dns

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// ClusterCIDRs returns the pods' addresses for Config.AllowFrom. It reads the environment variable CLUSTER_CIDR, which
// the Deployment sets from the agent's settings. An empty variable means no addresses.
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

// ServiceIP returns the ClusterIP of the Service kube-dns for Config.Self; nil if it is unknown. The kubelet passes the
// address in the environment of pods in the Service's namespace. A node's resolv.conf may name the address, which leads
// back to this server.
func ServiceIP() []netip.Addr {
	ip, err := netip.ParseAddr(os.Getenv("KUBE_DNS_SERVICE_HOST"))
	if err != nil {
		return nil
	}
	return []netip.Addr{ip}
}
