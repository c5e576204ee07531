package dns

import (
	"net/netip"
	"os"
)

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
