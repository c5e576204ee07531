package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/datapath"
)

// unsupported warns of known fields that have no effect here. Fields with an effect in kube-proxy on Linux get a line
// each with the reason. One more line names fields of another mode, of Windows, or without any effect.
func (r *resolver) unsupported(c *Config) {
	kp := r.kp
	ipvs := c.Mode == datapath.IPVS || c.Mode == datapath.Auto
	localhost := kp.IPTables.LocalhostNodePorts
	for _, f := range []struct {
		set   bool
		field string
		why   string
	}{
		{len(unknownGates(kp.FeatureGates)) > 0, "featureGates", "only " + gateExternalIPs + " means something here, not " + strings.Join(unknownGates(kp.FeatureGates), ", ")},
		{kp.EnableProfiling, "enableProfiling", "there is no profiling yet"},
		{kp.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion", "we hide no metrics"},
		{kp.ClientConnection.AcceptContentTypes != "", "clientConnection.acceptContentTypes", "it follows contentType"},
		{localhost != nil && *localhost, "iptables.localhostNodePorts", "NodePorts are not served on 127.0.0.1, whose packets would need route_localnet, which opens the node's own services to the network [--nodeport-addresses primary,localhost serves them by a listener]"},
		{ipvs && len(kp.IPVS.ExcludeCIDRs) > 0, "ipvs.excludeCIDRs", "virtual servers that others made are never touched"},
		{ipvs && kp.IPVS.StrictARP, "ipvs.strictARP", "no Service's address is on an interface, so the node answers ARP for none"},
	} {
		if f.set {
			r.warnf("%s has no effect: %s", r.name(f.field), f.why)
		}
	}
	if fields := r.idle(c.Mode); len(fields) > 0 {
		if !r.file {
			for i, f := range fields {
				fields[i] = flagName(f)
			}
		}
		r.warnf("in mode %s these have no effect: %s", c.Mode, strings.Join(fields, ", "))
	}
}

// idle returns the fields that belong to another mode, to Windows, or to nothing.
func (r *resolver) idle(mode string) []string {
	kp := r.kp
	var names []string
	for _, f := range []struct {
		set   bool
		field string
		in    []string // the modes that read the field
	}{
		{kp.IPVS.Scheduler != "", "ipvs.scheduler", []string{datapath.IPVS, datapath.Auto}},
		{len(kp.IPVS.ExcludeCIDRs) > 0, "ipvs.excludeCIDRs", []string{datapath.IPVS, datapath.Auto}},
		{kp.IPVS.StrictARP, "ipvs.strictARP", []string{datapath.IPVS, datapath.Auto}},
		{kp.IPVS.TCPTimeout.Duration != 0, "ipvs.tcpTimeout", []string{datapath.IPVS, datapath.Auto}},
		{kp.IPVS.TCPFinTimeout.Duration != 0, "ipvs.tcpFinTimeout", []string{datapath.IPVS, datapath.Auto}},
		{kp.IPVS.UDPTimeout.Duration != 0, "ipvs.udpTimeout", []string{datapath.IPVS, datapath.Auto}},
		{kp.ConfigSyncPeriod.Duration != 0, "configSyncPeriod", nil},
		{kp.BindAddressHardFail, "bindAddressHardFail", nil},
		{kp.PortRange != "", "portRange", nil},
		{kp.WindowsRunAsService, "windowsRunAsService", nil},
		{kp.Winkernel.NetworkName != "", "winkernel.networkName", nil},
		{kp.Winkernel.SourceVip != "", "winkernel.sourceVip", nil},
		{kp.Winkernel.EnableDSR, "winkernel.enableDSR", nil},
		{kp.Winkernel.RootHnsEndpointName != "", "winkernel.rootHnsEndpointName", nil},
		{kp.Winkernel.ForwardHealthCheckVip, "winkernel.forwardHealthCheckVip", nil},
	} {
		if f.set && !slices.Contains(f.in, mode) {
			names = append(names, f.field)
		}
	}
	return append(names, r.idleSections()...)
}

// idleSections returns the period and masquerade fields of a file's unused sections. Flags set all sections, so they
// are not reported.
func (r *resolver) idleSections() []string {
	if !r.file || r.kp.Mode == "" {
		return nil // two sections count without a mode; the third is not reported
	}
	kp, used := r.kp, r.section()
	var names []string
	for _, s := range []struct {
		name          string
		masquerade    bool
		sync, minSync bool
	}{
		{"iptables", kp.IPTables.MasqueradeAll || kp.IPTables.MasqueradeBit != nil, kp.IPTables.SyncPeriod.Duration != 0, kp.IPTables.MinSyncPeriod.Duration != 0},
		{"ipvs", false, kp.IPVS.SyncPeriod.Duration != 0, kp.IPVS.MinSyncPeriod.Duration != 0},
		{"nftables", kp.NFTables.MasqueradeAll || kp.NFTables.MasqueradeBit != nil, kp.NFTables.SyncPeriod.Duration != 0, kp.NFTables.MinSyncPeriod.Duration != 0},
	} {
		if s.masquerade && s.name != used.masqueradeIn {
			names = append(names, s.name+".masquerade*")
		}
		if (s.sync || s.minSync) && s.name != used.name {
			names = append(names, s.name+".*Period")
		}
	}
	return names
}

// unknownGates returns the feature gates without an effect here, sorted.
func unknownGates(gates map[string]bool) []string {
	names := slices.Sorted(maps.Keys(gates))
	return slices.DeleteFunc(names, func(n string) bool { return n == gateExternalIPs })
}
