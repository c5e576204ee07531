package config

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/fairway-net/fairway/internal/operate/settings"
	"github.com/fairway-net/fairway/internal/podnetwork/node"
)

// Flags holds the command line's options before they are checked.
type Flags struct {
	fs   *pflag.FlagSet
	file string // --config
	// kp holds the options that a file can also set. One resolver then serves both.
	kp  v1alpha1.KubeProxyConfiguration
	own own

	syncPeriod, minSyncPeriod time.Duration
	masqueradeBit, oomScore   int32
	featureGates              string
	localhost                 *bool

	given map[string]givenFlag // the flags that --settings-dir has overwritten
}

// own holds the options without a field in the file, and those that win over the file.
type own struct {
	master, hostname      string
	podNetwork            string
	cniBinDir, cniConfDir string
	nonMasqueradeCIDRs    string
	podFragments          int
	egressAddresses       bool
	networkPolicy         bool
	networkPolicyLog      bool
	networkPolicyReject   bool
	logLevel              string
	logFormat             string
	verbosity             int
	cleanup               bool
	afterKubeProxy        bool
	refuseExternalIPs     bool
	limits                string
	countTraffic          bool
	replaceKubeProxy      bool
	allowHTTP             bool
	emptyAfter            time.Duration
	ejection              string
	settingsDir           string
}

// besideFile lists the flags that count together with --config. (cobra adds help.)
var besideFile = []string{
	"config", "master", "hostname-override", "cleanup", "after-kube-proxy", "v", "log-level", "log-format",
	"pod-network", "non-masquerade-cidrs", "egress-addresses", "network-policy", "network-policy-log", "network-policy-reject", "cni-bin-dir", "cni-conf-dir", "pod-fragments", "refuse-external-ips", "service-limits", "count-traffic", "replace-kube-proxy",
	"allow-http-api-server", "empty-after", "ejection", "settings-dir", "help",
}

// NewFlags adds the agent's flags to fs.
func NewFlags(fs *pflag.FlagSet) *Flags {
	f := &Flags{fs: fs}
	fs.StringVar(&f.file, "config", "", "Read a KubeProxyConfiguration `file`; most other flags are ignored then")
	f.addCluster()
	f.addProxy()
	f.addIPVS()
	f.addConntrack()
	f.addPodNetwork()
	f.addIgnored()
	return f
}

func (f *Flags) addCluster() {
	fs, kp := f.fs, &f.kp
	fs.StringVar(&kp.ClientConnection.Kubeconfig, "kubeconfig", "", "Kubeconfig `file` (default the pod's service account)")
	fs.StringVar(&f.own.master, "master", "", "The `url` of the API server, instead of the one in the kubeconfig or the service account")
	fs.BoolVar(&f.own.allowHTTP, "allow-http-api-server", false, "Accept an API server without TLS that is not on this machine; anyone on the path to it can then change all Services")
	fs.StringVar(&f.own.ejection, "ejection", defaultEjection, usage("ejection"))
	fs.DurationVar(&f.own.emptyAfter, "empty-after", defaultEmptyAfter, usage("empty-after"))
	fs.StringVar(&kp.ClientConnection.ContentType, "kube-api-content-type", "", usage("kube-api-content-type"))
	fs.Int32Var(&kp.ClientConnection.Burst, "kube-api-burst", 10, usage("kube-api-burst"))
	fs.Float32Var(&kp.ClientConnection.QPS, "kube-api-qps", 5, usage("kube-api-qps"))
	fs.StringVar(&f.own.hostname, "hostname-override", "", "The `name` of this node's Node object (default the host name)")
	fs.StringVar(&kp.BindAddress, "bind-address", "", "Node `ip` to use as primary for NodePorts; nothing listens on it")
	fs.StringVar(&kp.HealthzBindAddress, "healthz-bind-address", "", "Serve /healthz, /livez and /statusz at `ip[:port]`; \"\" disables it (default 0.0.0.0:10256)")
	fs.StringVar(&kp.MetricsBindAddress, "metrics-bind-address", "", usage("metrics-bind-address"))
	fs.Int32Var(&f.oomScore, "oom-score-adj", 0, "oom_score_adj of this process, -1000 to 1000 (default unchanged)")
	fs.IntVarP(&f.own.verbosity, "v", "v", 0, "Log verbosity; 4 is --log-level debug")
	fs.StringVar(&f.own.logLevel, "log-level", "", usage("log-level"))
	fs.StringVar(&f.own.logFormat, "log-format", "", usage("log-format"))
	fs.StringVar(&f.own.logFormat, "logging-format", "", "kube-proxy's name of --log-format")
	fs.Lookup("logging-format").Hidden = true
	fs.BoolVar(&f.own.cleanup, "cleanup", false, "Remove all rules of Fairway from this node, and exit; the pod network's only with --pod-network routes")
	fs.StringVar(&f.own.settingsDir, "settings-dir", "", "`dir` with a file for each setting, as a ConfigMap is mounted; they win over flags, and changes take effect while the agent runs")
	fs.BoolVar(&f.own.afterKubeProxy, "after-kube-proxy", false, "With --cleanup, wait first until a kube-proxy has written its rules on this node")
}

func (f *Flags) addProxy() {
	fs, kp := f.fs, &f.kp
	fs.StringVar((*string)(&kp.Mode), "proxy-mode", "", "Proxy `mode`: "+proxyModes()+" (default nftables)")
	fs.BoolVar(&f.own.replaceKubeProxy, "replace-kube-proxy", false, usage("replace-kube-proxy"))
	fs.BoolVar(&f.own.countTraffic, "count-traffic", false, usage("count-traffic"))
	fs.StringVar((*string)(&kp.DetectLocalMode), "detect-local-mode", "", usage("detect-local-mode"))
	fs.StringVar(&kp.ClusterCIDR, "cluster-cidr", "", "Pod `cidrs` of the cluster, separated by commas")
	fs.StringVar(&kp.DetectLocal.BridgeInterface, "pod-bridge-interface", "", usage("pod-bridge-interface"))
	fs.StringVar(&kp.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", usage("pod-interface-name-prefix"))
	fs.StringSliceVar(&kp.NodePortAddresses, "nodeport-addresses", nil, usage("nodeport-addresses"))
	fs.BoolVar(&f.own.refuseExternalIPs, "refuse-external-ips", false, usage("refuse-external-ips"))
	fs.StringVar(&f.own.limits, "service-limits", "", usage("service-limits"))
	fs.BoolVar(&kp.NFTables.MasqueradeAll, "masquerade-all", false, usage("masquerade-all"))
	for _, name := range []string{"nftables-masquerade-bit", "iptables-masquerade-bit"} {
		fs.Int32Var(&f.masqueradeBit, name, 14, usage("nftables-masquerade-bit"))
	}
	for _, name := range []string{"sync-period", "iptables-sync-period", "ipvs-sync-period"} {
		fs.DurationVar(&f.syncPeriod, name, defaultSyncPeriod, usage("sync-period"))
	}
	for _, name := range []string{"min-sync-period", "iptables-min-sync-period", "ipvs-min-sync-period"} {
		fs.DurationVar(&f.minSyncPeriod, name, 0, usage("min-sync-period"))
	}
	// kube-proxy has these names for options that several modes share.
	for _, name := range []string{
		"iptables-masquerade-bit", "iptables-sync-period", "iptables-min-sync-period", "ipvs-sync-period", "ipvs-min-sync-period",
	} {
		fs.Lookup(name).Hidden = true
	}
	f.localhost = fs.Bool("iptables-localhost-nodeports", false, "NodePorts on 127.0.0.1: they are not served there in any mode")
	fs.Lookup("iptables-localhost-nodeports").Hidden = true
}

// usage returns the help text of a flag that is a setting.
func usage(flag string) string { return settings.Usage(settings.Agent, flag) }

// proxyModes returns the modes as help texts print them.
func proxyModes() string {
	all := Modes()
	return strings.Join(all[:len(all)-2], ", ") + ", auto for the best that works here, or none to make only the pod network"
}

func (f *Flags) addIPVS() {
	fs, v := f.fs, &f.kp.IPVS
	fs.StringVar(&v.Scheduler, "ipvs-scheduler", "", usage("ipvs-scheduler"))
	fs.StringSliceVar(&v.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "Accepted for kube-proxy's sake: virtual servers that others made are never touched")
	fs.BoolVar(&v.StrictARP, "ipvs-strict-arp", false, "Accepted for kube-proxy's sake: no Service's address is on an interface")
	for _, name := range []string{"ipvs-exclude-cidrs", "ipvs-strict-arp"} {
		fs.Lookup(name).Hidden = true
	}
	fs.DurationVar(&v.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, usage("ipvs-tcp-timeout"))
	fs.DurationVar(&v.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, usage("ipvs-tcpfin-timeout"))
	fs.DurationVar(&v.UDPTimeout.Duration, "ipvs-udp-timeout", 0, usage("ipvs-udp-timeout"))
}

// parseGates reads "Name=true,Other=false".
func parseGates(text string) (map[string]bool, error) {
	if text == "" {
		return nil, nil
	}
	gates := map[string]bool{}
	for _, one := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(one), "=")
		on, err := strconv.ParseBool(value)
		if err != nil || name == "" {
			return nil, fmt.Errorf("%q is not Name=true or Name=false", one)
		}
		gates[name] = on
	}
	return gates, nil
}

func (f *Flags) addPodNetwork() {
	f.fs.StringVar(&f.own.podNetwork, "pod-network", PodNetworkNone, usage("pod-network"))
	f.fs.StringVar(&f.own.nonMasqueradeCIDRs, "non-masquerade-cidrs", "", usage("non-masquerade-cidrs"))
	f.fs.BoolVar(&f.own.egressAddresses, "egress-addresses", false, usage("egress-addresses"))
	f.fs.BoolVar(&f.own.networkPolicy, "network-policy", false, usage("network-policy"))
	f.fs.BoolVar(&f.own.networkPolicyLog, "network-policy-log", false, usage("network-policy-log"))
	f.fs.BoolVar(&f.own.networkPolicyReject, "network-policy-reject", false, usage("network-policy-reject"))
	f.fs.StringVar(&f.own.cniBinDir, "cni-bin-dir", "/opt/cni/bin", "Where the container runtime looks for CNI plugins, a `dir`")
	f.fs.IntVar(&f.own.podFragments, "pod-fragments", node.DefaultFragments, usage("pod-fragments"))
	f.fs.StringVar(&f.own.cniConfDir, "cni-conf-dir", "/etc/cni/net.d", "Where the container runtime looks for CNI configurations, a `dir`")
}

// ignoredFlags are flags of kube-proxy without an effect here. A DaemonSet that sets them must still start. The value
// is the flag's value if it is given without one.
var ignoredFlags = map[string]string{
	"bind-address-hard-fail": "true", "profiling": "true", "show-hidden-metrics-for-version": "",
	"config-sync-period": "",
}

func (f *Flags) addIgnored() {
	f.fs.StringVar(&f.featureGates, "feature-gates", "", "Of kube-proxy's gates only "+gateExternalIPs+" means something here")
	for name, bare := range ignoredFlags {
		f.fs.String(name, "", "Accepted for kube-proxy's sake")
		f.fs.Lookup(name).NoOptDefVal = bare
		f.fs.Lookup(name).Hidden = true
	}
	f.fs.Lookup("feature-gates").Hidden = true
}

// Load returns what the flags that fs has parsed, and the file they name, ask for.
func (f *Flags) Load() (*Config, error) { return f.load(os.Hostname) }

func (f *Flags) load(hostname func() (string, error)) (*Config, error) {
	if err := f.applySettings(); err != nil {
		return nil, err
	}
	r := &resolver{own: f.own, changed: f.fs.Changed}
	if f.file == "" {
		kp, err := f.merged()
		if err != nil {
			return nil, err
		}
		r.kp, r.name = kp, flagName
		r.warnings = f.ignored()
	} else {
		kp, err := readFile(f.file)
		if err != nil {
			return nil, err
		}
		r.kp, r.name = kp, func(field string) string { return fmt.Sprintf("%s: %s", f.file, field) }
		r.warnings = f.overruled()
		r.file = true
	}
	return r.resolve(hostname)
}

// merged returns kp with the flags that have no field of their own type in it.
func (f *Flags) merged() (*v1alpha1.KubeProxyConfiguration, error) {
	kp := f.kp.DeepCopy()
	if f.syncPeriod <= 0 {
		return nil, fmt.Errorf("--sync-period %v: must be more than 0", f.syncPeriod)
	}
	// A flag counts in every mode; which section is read is the file's concern.
	period, pause := metav1.Duration{Duration: f.syncPeriod}, metav1.Duration{Duration: f.minSyncPeriod}
	kp.NFTables.SyncPeriod, kp.IPTables.SyncPeriod, kp.IPVS.SyncPeriod = period, period, period
	kp.NFTables.MinSyncPeriod, kp.IPTables.MinSyncPeriod, kp.IPVS.MinSyncPeriod = pause, pause, pause
	kp.NFTables.MasqueradeBit, kp.IPTables.MasqueradeBit = &f.masqueradeBit, &f.masqueradeBit
	kp.IPTables.MasqueradeAll = kp.NFTables.MasqueradeAll
	if f.fs.Changed("iptables-localhost-nodeports") {
		kp.IPTables.LocalhostNodePorts = f.localhost
	}
	gates, err := parseGates(f.featureGates)
	if err != nil {
		return nil, fmt.Errorf("--feature-gates: %w", err)
	}
	kp.FeatureGates = gates
	if f.fs.Changed("oom-score-adj") {
		kp.OOMScoreAdj = &f.oomScore
	}
	return kp, nil
}

// ignored warns of flags that were given and have no effect.
func (f *Flags) ignored() []string {
	var names []string
	for name := range ignoredFlags {
		if f.fs.Changed(name) {
			names = append(names, "--"+name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return []string{"these flags of kube-proxy have no effect here: " + strings.Join(names, ", ")}
}

// overruled warns of flags that were given beside --config.
func (f *Flags) overruled() []string {
	var names []string
	f.fs.Visit(func(fl *pflag.Flag) {
		if !slices.Contains(besideFile, fl.Name) {
			names = append(names, "--"+fl.Name)
		}
	})
	if len(names) == 0 {
		return nil
	}
	return []string{"--config is given, so these flags are ignored, as kube-proxy does (write them into the file): " + strings.Join(names, ", ")}
}

// level returns the log level: klog's verbosity is slog's level below zero.
func (o own) level(verbosity int) (slog.Level, error) {
	if o.logLevel == "" {
		return slog.Level(-max(verbosity, 0)), nil
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(o.logLevel)); err != nil {
		return 0, fmt.Errorf("--log-level %q: must be debug, info, warn or error", o.logLevel)
	}
	return l, nil
}
