package config

import "k8s.io/kube-proxy/config/v1alpha1"

// unsupported warns of fields that are set and that we know but do not honour. Those
// that can mean nothing in our modes even to kube-proxy (its sections for other modes
// and for Windows, portRange) are not worth a line.
func (r *resolver) unsupported() {
	kp := r.kp
	for _, f := range []struct {
		set   bool
		field string
		why   string
	}{
		{len(kp.FeatureGates) > known(kp.FeatureGates), "featureGates", "only " + gateExternalIPs + " means something here"},
		{kp.EnableProfiling, "enableProfiling", "there is no profiling yet"},
		{kp.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion", "we hide no metrics"},
		{kp.ClientConnection.AcceptContentTypes != "", "clientConnection.acceptContentTypes", "it follows contentType"},
		{setsConntrack(kp.Conntrack), "conntrack", "the node's conntrack settings are left as they are"},
		{kp.Logging.Format != "" && kp.Logging.Format != "text", "logging.format", "logs are text"},
	} {
		if f.set {
			r.warnf("%s has no effect: %s", r.name(f.field), f.why)
		}
	}
}

// known counts the gates that mean something here.
func known(gates map[string]bool) int {
	if _, ok := gates[gateExternalIPs]; ok {
		return 1
	}
	return 0
}

func setsConntrack(c v1alpha1.KubeProxyConntrackConfiguration) bool {
	return c.MaxPerCore != nil && *c.MaxPerCore != 0 || c.Min != nil && *c.Min != 0 ||
		c.TCPEstablishedTimeout != nil && c.TCPEstablishedTimeout.Duration != 0 ||
		c.TCPCloseWaitTimeout != nil && c.TCPCloseWaitTimeout.Duration != 0 ||
		c.TCPBeLiberal || c.UDPTimeout.Duration != 0 || c.UDPStreamTimeout.Duration != 0
}
