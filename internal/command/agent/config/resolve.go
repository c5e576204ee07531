package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/operate/settings"
	"github.com/fairway-net/fairway/internal/service"
)

const (
	defaultSyncPeriod    = 30 * time.Second
	defaultEmptyAfter    = time.Minute
	defaultEjection      = "10s"
	DefaultMasqueradeBit = numbers.MasqueradeBit
	healthzPort          = numbers.PortHealthz
	metricsPort          = numbers.PortMetrics
)

// A resolver turns either spelling of the options into a Config.
type resolver struct {
	kp       *v1alpha1.KubeProxyConfiguration
	own      own
	file     bool                      // kp comes from a file
	name     func(field string) string // returns the option's name as the user wrote it
	changed  func(flag string) bool    // reports whether the flag was given
	warnings []string
}

// flagNames lists the flags whose names do not follow from the fields' names.
var flagNames = map[string]string{
	"mode": "proxy-mode", "clusterCIDR": "cluster-cidr", "detectLocalMode": "detect-local-mode",
	"detectLocal.bridgeInterface": "pod-bridge-interface", "detectLocal.interfaceNamePrefix": "pod-interface-name-prefix",
	"nodePortAddresses": "nodeport-addresses", "bindAddress": "bind-address",
	"healthzBindAddress": "healthz-bind-address", "metricsBindAddress": "metrics-bind-address",
	"nftables.masqueradeBit": "nftables-masquerade-bit", "nftables.syncPeriod": "sync-period", "nftables.minSyncPeriod": "min-sync-period",
	"iptables.masqueradeBit": "iptables-masquerade-bit", "iptables.syncPeriod": "sync-period", "iptables.minSyncPeriod": "min-sync-period",
	"iptables.localhostNodePorts": "iptables-localhost-nodeports",
	"ipvs.syncPeriod":             "sync-period", "ipvs.minSyncPeriod": "min-sync-period", "ipvs.scheduler": "ipvs-scheduler",
	"ipvs.excludeCIDRs": "ipvs-exclude-cidrs", "ipvs.tcpTimeout": "ipvs-tcp-timeout", "ipvs.tcpFinTimeout": "ipvs-tcpfin-timeout",
	"ipvs.udpTimeout": "ipvs-udp-timeout", "ipvs.strictARP": "ipvs-strict-arp", "oomScoreAdj": "oom-score-adj",
	"conntrack.maxPerCore": "conntrack-max-per-core", "conntrack.min": "conntrack-min",
	"conntrack.tcpEstablishedTimeout": "conntrack-tcp-timeout-established", "conntrack.tcpCloseWaitTimeout": "conntrack-tcp-timeout-close-wait",
	"conntrack.udpTimeout": "conntrack-udp-timeout", "conntrack.udpStreamTimeout": "conntrack-udp-timeout-stream",
	"featureGates": "feature-gates", "clientConnection.burst": "kube-api-burst", "clientConnection.qps": "kube-api-qps",
}

func flagName(field string) string { return "--" + cmp.Or(flagNames[field], field) }

func (r *resolver) errorf(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s", r.name(field), fmt.Sprintf(format, args...))
}

func (r *resolver) warnf(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// resolve checks all options and returns the first error.
func (r *resolver) resolve(hostname func() (string, error)) (*Config, error) {
	c := &Config{
		Kubeconfig:  r.kp.ClientConnection.Kubeconfig,
		Master:      r.own.master,
		ContentType: r.kp.ClientConnection.ContentType,
		Cleanup:     r.own.cleanup, CountTraffic: r.own.countTraffic, ReplaceKubeProxy: r.own.replaceKubeProxy,
		AfterKubeProxy: r.own.afterKubeProxy, AllowHTTP: r.own.allowHTTP,
	}
	for _, step := range []func(*Config) error{
		r.master, r.mode, r.gates, r.limits, r.client, r.bind, r.detect, r.nodePorts, r.masquerade, r.periods, r.ipvs, r.conntrack, r.process, r.podNetwork,
		func(c *Config) error { return r.nodeName(c, hostname) },
	} {
		if err := step(c); err != nil {
			return nil, err
		}
	}
	r.unsupported(c)
	c.Warnings = r.warnings
	return c, nil
}

// gateExternalIPs is kube-proxy's feature gate of KEP-5707. If it is off, spec.externalIPs are refused.
const gateExternalIPs = "AllowServiceExternalIPs"

func (r *resolver) gates(c *Config) error {
	allowed, set := r.kp.FeatureGates[gateExternalIPs]
	c.RefuseExternalIPs = r.own.refuseExternalIPs || set && !allowed
	return nil
}

// The default limits of a Service in mode iptables, where the cost of a write grows faster than the number of rules. A list of
// 5,000 endpoints is written whole, in half a second. Removing 2,000 frontends takes about two seconds; 10,000 take 45.
const (
	iptablesEndpoints = 5000
	iptablesFrontends = 2000
)

func (r *resolver) limits(c *Config) error {
	c.Limits = service.DefaultLimits()
	if c.Mode == datapath.IPTables {
		c.Limits.Endpoints, c.Limits.Frontends = iptablesEndpoints, iptablesFrontends
	}
	if r.own.limits == "" {
		return nil
	}
	if err := c.Limits.Parse(r.own.limits); err != nil {
		return fmt.Errorf("--service-limits: %w", err)
	}
	return nil
}

func (r *resolver) mode(c *Config) error {
	if c.AfterKubeProxy && !c.Cleanup {
		return errors.New("--after-kube-proxy: only with --cleanup")
	}
	c.Mode = cmp.Or(string(r.kp.Mode), datapath.NFTables)
	switch {
	case !slices.Contains(Modes(), c.Mode):
		return r.errorf("mode", "%q is not a proxy mode [choose one of %s]", c.Mode, strings.Join(Modes(), ", "))
	case c.Mode == datapath.None && c.ReplaceKubeProxy && !c.Cleanup:
		return errors.New("--replace-kube-proxy: with proxy mode none nobody would carry Services [choose another mode]")
	}
	return nil
}

func (r *resolver) client(c *Config) error {
	cc := r.kp.ClientConnection
	if cc.Burst < 0 {
		return r.errorf("clientConnection.burst", "%d: must not be less than 0", cc.Burst)
	}
	if c.EmptyAfter = r.own.emptyAfter; c.EmptyAfter < 0 {
		return fmt.Errorf("--empty-after %v: must not be less than 0", c.EmptyAfter)
	}
	var err error
	if c.Ejection, err = service.ParseEjection(r.own.ejection); err != nil {
		return fmt.Errorf("--ejection: %w", err)
	}
	c.QPS, c.Burst = cmp.Or(cc.QPS, 5), int(cmp.Or(cc.Burst, 10))
	return nil
}

func (r *resolver) nodeName(c *Config, hostname func() (string, error)) error {
	given := r.kp.HostnameOverride
	if r.own.hostname != "" {
		given = strings.TrimSpace(r.own.hostname)
		if given == "" {
			return errors.New("--hostname-override: must not be blank")
		}
	}
	name := given
	if name == "" {
		var err error
		if name, err = hostname(); err != nil {
			return fmt.Errorf("read the host's name: %w [give --hostname-override]", err)
		}
	}
	// Kubernetes writes node names in lower case, whatever the host's name is.
	c.NodeName = strings.ToLower(strings.TrimSpace(name))
	if c.NodeName == "" {
		return errors.New("the host has no name [give --hostname-override]")
	}
	return nil
}

func (r *resolver) bind(c *Config) error {
	healthz, metrics := netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if text := r.kp.BindAddress; text != "" {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return r.errorf("bindAddress", "%q is not an IP address", text)
		}
		if ip = ip.Unmap(); ip.Is6() {
			healthz, metrics = netip.IPv6Unspecified(), netip.IPv6Loopback()
		}
		if !ip.IsUnspecified() {
			c.BindAddress = ip
		}
	}
	var err error
	if c.Healthz, err = r.listen("healthzBindAddress", r.kp.HealthzBindAddress, netip.AddrPortFrom(healthz, healthzPort)); err != nil {
		return err
	}
	address, err := settings.Resolve(r.kp.MetricsBindAddress)
	if err != nil {
		return r.errorf("metricsBindAddress", "%v", err)
	}
	if c.Metrics, err = r.listen("metricsBindAddress", address, netip.AddrPortFrom(metrics, metricsPort)); err != nil {
		return err
	}
	if c.Healthz.IsValid() && c.Healthz == c.Metrics {
		return r.errorf("metricsBindAddress", "%v is already that of healthzBindAddress", c.Metrics)
	}
	return nil
}

// listen reads "IP" or "IP:port". An empty flag disables the server. An empty field of the file means the default, as
// in kube-proxy.
func (r *resolver) listen(field, text string, or netip.AddrPort) (netip.AddrPort, error) {
	if text == "" {
		if !r.file && r.changed(flagNames[field]) {
			return netip.AddrPort{}, nil
		}
		return or, nil
	}
	if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPortFrom(ip, or.Port()), nil
	}
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		return netip.AddrPort{}, r.errorf(field, "%q is not IP:port", text)
	}
	if ap.Port() == 0 {
		return netip.AddrPort{}, r.errorf(field, "%q: the port must be in 1-65535", text)
	}
	return ap, nil
}

// podInterface reads the interface of local pods.
func (r *resolver) podInterface(c *Config) error {
	field, name, suffix := "detectLocal.bridgeInterface", r.kp.DetectLocal.BridgeInterface, ""
	if c.Detect == DetectPrefix {
		field, name, suffix = "detectLocal.interfaceNamePrefix", r.kp.DetectLocal.InterfaceNamePrefix, "*"
	}
	const longest = 15 // IFNAMSIZ without the terminating zero
	if name == "" || len(name) > longest || strings.ContainsAny(name, "*/ \t") {
		return r.errorf(field, "%q is not the name of an interface, which detectLocalMode %s needs", name, c.Detect)
	}
	c.PodInterface = name + suffix
	return nil
}

func (r *resolver) detect(c *Config) error {
	c.Detect = cmp.Or(string(r.kp.DetectLocalMode), DetectClusterCIDR)
	switch c.Detect {
	case DetectClusterCIDR, DetectNodeCIDR:
	case DetectBridge, DetectPrefix:
		if err := r.podInterface(c); err != nil {
			return err
		}
	default:
		return r.errorf("detectLocalMode", "%q is not one of %s, %s, %s, %s", c.Detect,
			DetectClusterCIDR, DetectNodeCIDR, DetectBridge, DetectPrefix)
	}
	for text := range strings.SplitSeq(r.kp.ClusterCIDR, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := parsePrefix(text)
		if err != nil {
			return r.errorf("clusterCIDR", "%v", err)
		}
		c.ClusterCIDRs = append(c.ClusterCIDRs, p)
	}
	if c.Detect == DetectClusterCIDR && len(c.ClusterCIDRs) == 0 && c.Mode != datapath.None && !c.Cleanup {
		r.warnf("%s is not set: clients outside the cluster can use a ClusterIP only if their replies come back through this node", r.name("clusterCIDR"))
	}
	return nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR such as 10.244.0.0/16", text)
	}
	if a := p.Addr(); a.Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q mixes IPv4 and IPv6", text)
	}
	return p.Masked(), nil
}

func (r *resolver) nodePorts(c *Config) error {
	texts := r.kp.NodePortAddresses
	if len(texts) == 0 {
		c.NodePorts.Primary = true
		return nil
	}
	for _, text := range texts {
		switch text = strings.TrimSpace(text); text {
		case "primary":
			c.NodePorts.Primary = true
		case "all":
			c.NodePorts.Prefixes = append(c.NodePorts.Prefixes, allOf(true), allOf(false))
		case "localhost":
			c.NodePorts.Loopback = append(c.NodePorts.Loopback, loopback(true), loopback(false))
		default:
			p, err := parsePrefix(text)
			if err != nil {
				return r.errorf("nodePortAddresses", "%v, nor one of the words primary, all", err)
			}
			c.NodePorts.Prefixes = append(c.NodePorts.Prefixes, p)
			switch own := loopback(p.Addr().Is4()); {
			case !p.Addr().IsLoopback(): // 0.0.0.0/0 means all addresses that clients can reach
			case p.Contains(own):
				c.NodePorts.Loopback = append(c.NodePorts.Loopback, own)
			default:
				c.NodePorts.Loopback = append(c.NodePorts.Loopback, p.Addr())
			}
		}
	}
	slices.SortFunc(c.NodePorts.Loopback, netip.Addr.Compare)
	c.NodePorts.Loopback = slices.Compact(c.NodePorts.Loopback)
	r.openFamily(c)
	return nil
}

// loopback returns the usual loopback address of a family. The agent listens at single addresses, not at ranges.
func loopback(is4 bool) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// openFamily follows kube-proxy: if a list names addresses of one family only, the other family is served on all
// addresses.
func (r *resolver) openFamily(c *Config) {
	if c.NodePorts.Primary || len(c.NodePorts.Prefixes) == 0 {
		return
	}
	for _, is4 := range []bool{true, false} {
		if slices.ContainsFunc(c.NodePorts.Prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() == is4 }) {
			continue
		}
		p := allOf(is4)
		c.NodePorts.Prefixes = append(c.NodePorts.Prefixes, p)
		r.warnf("%s has no CIDR of the other family, so NodePorts are served on %v too, as kube-proxy does", r.name("nodePortAddresses"), p)
	}
}

func allOf(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// A section holds the options that each mode has for itself.
type section struct {
	name          string // the section of the sync periods
	masqueradeIn  string // the section of the masquerade options
	all           bool
	bit           *int32
	sync, minSync metav1.Duration
}

// section returns the options of the mode. If the file names no mode, missing options come from the section that
// kube-proxy would read.
func (r *resolver) section() section {
	ipt, nft, ipvs := r.kp.IPTables, r.kp.NFTables, r.kp.IPVS
	switch string(r.kp.Mode) {
	case datapath.IPTables:
		return section{"iptables", "iptables", ipt.MasqueradeAll, ipt.MasqueradeBit, ipt.SyncPeriod, ipt.MinSyncPeriod}
	case datapath.IPVS:
		return section{"ipvs", "iptables", ipt.MasqueradeAll, ipt.MasqueradeBit, ipvs.SyncPeriod, ipvs.MinSyncPeriod}
	}
	s := section{"nftables", "nftables", nft.MasqueradeAll, nft.MasqueradeBit, nft.SyncPeriod, nft.MinSyncPeriod}
	if r.file && r.kp.Mode == "" {
		s.all = s.all || ipt.MasqueradeAll
		s.bit = cmp.Or(s.bit, ipt.MasqueradeBit)
		s.sync, s.minSync = cmp.Or(s.sync, ipt.SyncPeriod), cmp.Or(s.minSync, ipt.MinSyncPeriod)
	}
	return s
}

func (r *resolver) masquerade(c *Config) error {
	s := r.section()
	c.MasqueradeAll, c.MasqueradeBit = s.all, DefaultMasqueradeBit
	if s.bit != nil {
		c.MasqueradeBit = int(*s.bit)
	}
	if c.MasqueradeBit < 0 || c.MasqueradeBit > 31 {
		return r.errorf(s.masqueradeIn+".masqueradeBit", "%d: must be in 0-31", c.MasqueradeBit)
	}
	return nil
}

func (r *resolver) periods(c *Config) error {
	s := r.section()
	period, pause := s.name+".syncPeriod", s.name+".minSyncPeriod"
	c.SyncPeriod, c.MinSyncPeriod = cmp.Or(s.sync.Duration, defaultSyncPeriod), s.minSync.Duration
	switch {
	case c.SyncPeriod <= 0:
		return r.errorf(period, "%v: must be more than 0", c.SyncPeriod)
	case c.MinSyncPeriod < 0:
		return r.errorf(pause, "%v: must not be less than 0", c.MinSyncPeriod)
	case c.MinSyncPeriod > c.SyncPeriod:
		return r.errorf(pause, "%v: must not be more than %s, %v", c.MinSyncPeriod, r.name(period), c.SyncPeriod)
	}
	return nil
}

// ipvs reads the options of mode ipvs in every mode, so that an error in them is reported in every mode.
func (r *resolver) ipvs(c *Config) error {
	v := r.kp.IPVS
	c.IPVS = IPVS{
		Scheduler: service.RoundRobin, TCP: v.TCPTimeout.Duration, TCPFin: v.TCPFinTimeout.Duration, UDP: v.UDPTimeout.Duration,
	}
	if v.Scheduler != "" {
		var err error
		if c.IPVS.Scheduler, err = service.ParseAlgorithm(v.Scheduler); err != nil {
			return r.errorf("ipvs.scheduler", "%v", err)
		}
	}
	for _, text := range v.ExcludeCIDRs {
		if _, err := parsePrefix(strings.TrimSpace(text)); err != nil {
			return r.errorf("ipvs.excludeCIDRs", "%v", err)
		}
	}
	for _, t := range []struct {
		field string
		d     time.Duration
	}{{"ipvs.tcpTimeout", c.IPVS.TCP}, {"ipvs.tcpFinTimeout", c.IPVS.TCPFin}, {"ipvs.udpTimeout", c.IPVS.UDP}} {
		if t.d < 0 {
			return r.errorf(t.field, "%v: must not be less than 0", t.d)
		}
	}
	return nil
}

func (r *resolver) process(c *Config) error {
	if adj := r.kp.OOMScoreAdj; adj != nil {
		if *adj < -1000 || *adj > 1000 {
			return r.errorf("oomScoreAdj", "%d: must be in -1000-1000", *adj)
		}
		c.OOMScoreAdj = new(int(*adj))
	}
	verbosity := r.own.verbosity
	if r.file && !r.changed("v") {
		verbosity = int(min(r.kp.Logging.Verbosity, 100))
	}
	format := cmp.Or(r.own.logFormat, r.kp.Logging.Format, "text")
	if format != "text" && format != "json" {
		name := "--log-format"
		if r.own.logFormat == "" {
			name = r.name("logging.format")
		}
		return fmt.Errorf("%s: %q is not a format [choose text or json]", name, format)
	}
	c.LogJSON = format == "json"
	var err error
	c.LogLevel, err = r.own.level(verbosity)
	return err
}

func (r *resolver) nonMasqueradeCIDRs(c *Config) error {
	if r.own.nonMasqueradeCIDRs == "" {
		return nil
	}
	for text := range strings.SplitSeq(r.own.nonMasqueradeCIDRs, ",") {
		prefix, err := parsePrefix(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		c.NonMasqueradeCIDRs = append(c.NonMasqueradeCIDRs, prefix)
	}
	return nil
}

func (r *resolver) podNetwork(c *Config) error {
	c.PodNetwork, c.CNIBinDir, c.CNIConfDir = r.own.podNetwork, r.own.cniBinDir, r.own.cniConfDir
	c.NetworkPolicy, c.NetworkPolicyLog, c.NetworkPolicyReject = r.own.networkPolicy, r.own.networkPolicyLog, r.own.networkPolicyReject
	c.EgressAddresses = r.own.egressAddresses
	if err := r.nonMasqueradeCIDRs(c); err != nil {
		return fmt.Errorf("--non-masquerade-cidrs: %w", err)
	}
	if c.EgressAddresses && c.PodNetwork == PodNetworkNone {
		return errors.New("--egress-addresses takes a pod network of Fairway's: --pod-network is none")
	}
	switch c.PodNetwork {
	case PodNetworkNone:
		if c.Mode == datapath.None && !c.Cleanup && !c.NetworkPolicy {
			r.warnf("the proxy mode and --pod-network are both none: this agent only hands over the rules that another one left")
		}
		return nil
	case PodNetworkRoutes, PodNetworkVXLAN, PodNetworkAuto, PodNetworkWireGuard, PodNetworkBGP:
	default:
		return fmt.Errorf("--pod-network %q: must be one of %s", c.PodNetwork, strings.Join(PodNetworks(), ", "))
	}
	if c.PodFragments = r.own.podFragments; c.PodFragments < 0 {
		return fmt.Errorf("--pod-fragments %d: must be 0 or more", c.PodFragments)
	}
	for flag, dir := range map[string]string{"--cni-bin-dir": c.CNIBinDir, "--cni-conf-dir": c.CNIConfDir} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("%s %q: must be an absolute path", flag, dir)
		}
	}
	return nil
}
