package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/fairway-net/fairway/internal/cli/configfile"
	"github.com/fairway-net/fairway/internal/service"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// load runs a command line as the agent does.
func load(args ...string) (*Config, error) {
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	f := NewFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return f.load(func() (string, error) { return "Host-1", nil })
}

// write puts a KubeProxyConfiguration with these lines into a file.
func write(t testing.TB, lines string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.conf")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + lines
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// defaults is the Config of `--cluster-cidr 10.244.0.0/16`.
func defaults() *Config {
	return &Config{
		QPS: 5, Burst: 10,
		NodeName: "host-1", Mode: "nftables",
		Healthz: netip.MustParseAddrPort("0.0.0.0:10256"), Metrics: netip.MustParseAddrPort("127.0.0.1:10249"),
		Detect: "ClusterCIDR", ClusterCIDRs: prefixes("10.244.0.0/16"),
		NodePorts: NodePorts{Primary: true}, Limits: service.DefaultLimits(), MasqueradeBit: 14, Conntrack: byDefault(), IPVS: IPVS{Scheduler: service.RoundRobin},
		EmptyAfter: time.Minute, Ejection: 10 * time.Second, SyncPeriod: 30 * time.Second,
		PodNetwork: "none", CNIBinDir: "/opt/cni/bin", CNIConfDir: "/etc/cni/net.d",
	}
}

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		args []string
		want func(*Config)
	}{
		"defaults": {nil, func(*Config) {}},
		"connection": {
			[]string{"--kubeconfig=/k", "--master=https://1.2.3.4:6443", "--kube-api-qps=50", "--kube-api-burst=100", "--kube-api-content-type=application/json"},
			func(c *Config) {
				c.Kubeconfig, c.Master, c.QPS, c.Burst, c.ContentType = "/k", "https://1.2.3.4:6443", 50, 100, "application/json"
			},
		},
		"the node's name is lower case": {[]string{"--hostname-override= Node-A "}, func(c *Config) { c.NodeName = "node-a" }},
		"dual stack pods": {
			[]string{"--cluster-cidr=10.244.3.4/16, fd00:10:244::/56"},
			func(c *Config) { c.ClusterCIDRs = prefixes("10.244.0.0/16", "fd00:10:244::/56") },
		},
		"node CIDR": {
			[]string{"--detect-local-mode=NodeCIDR", "--cluster-cidr="},
			func(c *Config) { c.Detect, c.ClusterCIDRs = "NodeCIDR", nil },
		},
		"addresses": {
			[]string{"--healthz-bind-address=127.0.0.1", "--metrics-bind-address=[::]:9999"},
			func(c *Config) {
				c.Healthz, c.Metrics = netip.MustParseAddrPort("127.0.0.1:10256"), netip.MustParseAddrPort("[::]:9999")
			},
		},
		"no servers": {
			[]string{"--healthz-bind-address=", "--metrics-bind-address="},
			func(c *Config) { c.Healthz, c.Metrics = netip.AddrPort{}, netip.AddrPort{} },
		},
		"an IPv6 node": {
			[]string{"--bind-address=fd00::1"},
			func(c *Config) {
				c.BindAddress = netip.MustParseAddr("fd00::1")
				c.Healthz, c.Metrics = netip.MustParseAddrPort("[::]:10256"), netip.MustParseAddrPort("[::1]:10249")
			},
		},
		"node ports": {
			[]string{"--nodeport-addresses=primary,192.168.7.7/24"},
			func(c *Config) { c.NodePorts.Prefixes = prefixes("192.168.7.0/24") },
		},
		"node ports everywhere": {
			[]string{"--nodeport-addresses=all"},
			func(c *Config) { c.NodePorts = NodePorts{Prefixes: prefixes("0.0.0.0/0", "::/0")} },
		},
		"masquerading": {
			[]string{"--masquerade-all", "--iptables-masquerade-bit=3"},
			func(c *Config) { c.MasqueradeAll, c.MasqueradeBit = true, 3 },
		},
		"periods": {
			[]string{"--sync-period=10s", "--iptables-min-sync-period=2s"},
			func(c *Config) { c.SyncPeriod, c.MinSyncPeriod = 10*time.Second, 2*time.Second },
		},
		"process": {
			[]string{"--oom-score-adj=-998", "-v4", "--cleanup"},
			func(c *Config) { c.OOMScoreAdj, c.LogLevel, c.Cleanup = new(-998), -4, true },
		},
		"log level": {[]string{"--log-level=warn", "-v=9"}, func(c *Config) { c.LogLevel = 4 }},
		"pod network only": {
			[]string{"--proxy-mode=none", "--pod-network=routes", "--cni-bin-dir=/b", "--cni-conf-dir=/c"},
			func(c *Config) {
				c.Mode, c.PodNetwork, c.CNIBinDir, c.CNIConfDir, c.PodFragments = "none", "routes", "/b", "/c", 2500
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { checkFlags(t, test.args, test.want) })
	}
}

// TestModes is TestFlags for the modes beside nftables.
func TestModes(t *testing.T) {
	tests := map[string]struct {
		args []string
		want func(*Config)
	}{
		"mode ipvs": {
			[]string{
				"--proxy-mode=ipvs", "--ipvs-scheduler=wlc",
				"--ipvs-tcp-timeout=1h", "--ipvs-tcpfin-timeout=2m", "--ipvs-udp-timeout=3s", "--ipvs-sync-period=7s", "--ipvs-min-sync-period=1s",
			},
			func(c *Config) {
				c.Mode, c.SyncPeriod, c.MinSyncPeriod = "ipvs", 7*time.Second, time.Second
				c.IPVS = IPVS{service.LeastConn, time.Hour, 2 * time.Minute, 3 * time.Second}
			},
		},
		"mode iptables": {
			[]string{"--proxy-mode=iptables", "--masquerade-all", "--iptables-masquerade-bit=3", "--iptables-sync-period=7s", "--iptables-localhost-nodeports=false"},
			func(c *Config) {
				c.Mode, c.MasqueradeAll, c.MasqueradeBit, c.SyncPeriod = "iptables", true, 3, 7*time.Second
				c.Limits.Endpoints, c.Limits.Frontends = 5000, 2000
			},
		},
		"mode auto":      {[]string{"--proxy-mode=auto", "--ipvs-scheduler=sh"}, func(c *Config) { c.Mode, c.IPVS.Scheduler = "auto", service.SourceHash }},
		"mode userspace": {[]string{"--proxy-mode=userspace"}, func(c *Config) { c.Mode = "userspace" }},
		"of our own": {
			[]string{"--count-traffic", "--refuse-external-ips", "--replace-kube-proxy"},
			func(c *Config) { c.CountTraffic, c.RefuseExternalIPs, c.ReplaceKubeProxy = true, true, true },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { checkFlags(t, test.args, test.want) })
	}
}

// checkFlags holds what the flags make of the defaults against want.
func checkFlags(t *testing.T, args []string, change func(*Config)) {
	t.Helper()
	got, err := load(append([]string{"--cluster-cidr=10.244.0.0/16"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	change(want)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestFlagWarnings(t *testing.T) {
	c, err := load("--cluster-cidr=10.0.0.0/8", "--ipvs-strict-arp", "--feature-gates=A=true", "--profiling=false")
	if err != nil {
		t.Fatal(err)
	}
	checkWarnings(t, c.Warnings, []string{
		"no effect here: --profiling", "--feature-gates has no effect: only AllowServiceExternalIPs means something here, not A",
		"in mode nftables these have no effect: --ipvs-strict-arp",
	})
	for _, args := range [][]string{{"--feature-gates=AllowServiceExternalIPs=false"}, {"--refuse-external-ips"}} {
		c, err := load(append(args, "--cluster-cidr=10.0.0.0/8")...)
		if err != nil || !c.RefuseExternalIPs || len(c.Warnings) > 0 {
			t.Errorf("%q: refuses %v, warns %q, error %v", args, c.RefuseExternalIPs, c.Warnings, err)
		}
	}
	if _, err := load("--feature-gates=AllowServiceExternalIPs"); err == nil {
		t.Error("a gate without a value is accepted")
	}
	c, err = load()
	if err != nil {
		t.Fatal(err)
	}
	checkWarnings(t, c.Warnings, []string{"--cluster-cidr is not set"})
	if c, err = load("--proxy-mode=none", "--cluster-cidr=10.0.0.0/8"); err != nil {
		t.Fatal(err)
	}
	checkWarnings(t, c.Warnings, []string{"only hands over the rules that another one left"})
}

// The addresses of the node that no Service may have: those of the Node object, the one
// that replaces them, and those where NodePorts are served alone; no range, in which a
// load balancer's addresses may be. The API server's, where --master says it.
func TestReservedAddresses(t *testing.T) {
	c, err := load("--bind-address=192.168.9.9", "--nodeport-addresses=192.0.2.7/32,198.51.100.0/24", "--master=https://[fd00::6]:6443")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	got := c.Node("", []netip.Addr{addr("192.168.1.5"), addr("fd00::5"), addr("203.0.113.5")}, nil).NodeAddrs
	want := service.NewAddrSet(addr("192.168.9.9"), addr("192.168.1.5"), addr("fd00::5"), addr("203.0.113.5"), addr("192.0.2.7"))
	if !slices.Equal(got, want) {
		t.Errorf("the node's addresses are %v, want %v", got, want)
	}
	if got := c.masterAddr(); got != addr("fd00::6") {
		t.Errorf("the API server's address is %v", got)
	}
	if c.Master = "https://api.example.com"; c.masterAddr().IsValid() {
		t.Errorf("a name has the address %v", c.masterAddr())
	}
}

func TestServiceLimits(t *testing.T) {
	c, err := load("--service-limits=ports=7, frontends=0")
	want := service.DefaultLimits()
	want.Ports, want.Frontends = 7, 0
	if err != nil || c.Limits != want {
		t.Errorf("limits %v, error %v, want %v", c.Limits, err, want)
	}
	for _, text := range []string{"ports", "ports=", "ports=-1", "port=1", "ports=1,,frontends=1", "ports=99999999999"} {
		if _, err := load("--service-limits=" + text); err == nil || !strings.Contains(err.Error(), "--service-limits: ") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}

func TestSettings(t *testing.T) {
	addrs := func(texts ...string) []netip.Addr {
		var out []netip.Addr
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	tests := map[string]struct {
		args    []string
		addrs   []netip.Addr
		pods    []netip.Prefix
		want    service.Settings
		detect  bool
		masqAll bool
	}{
		"primary": {
			[]string{"--cluster-cidr=10.244.0.0/16"}, addrs("192.168.1.5", "192.168.2.5", "fd00::5"), nil,
			service.Settings{Pods: prefixes("10.244.0.0/16"), NodePorts: prefixes("192.168.1.5/32", "fd00::5/128")}, true, false,
		},
		"bind address": {
			[]string{"--cluster-cidr=10.244.0.0/16", "--bind-address=192.168.2.5"}, addrs("192.168.1.5", "fd00::5"), nil,
			service.Settings{Pods: prefixes("10.244.0.0/16"), NodePorts: prefixes("192.168.2.5/32", "fd00::5/128")}, true, false,
		},
		"no address yet": {
			nil, nil, nil, service.Settings{}, false, false,
		},
		"node CIDR": {
			[]string{"--detect-local-mode=NodeCIDR", "--cluster-cidr=10.244.0.0/16", "--masquerade-all"}, nil, prefixes("10.244.1.0/24"),
			service.Settings{Pods: prefixes("10.244.1.0/24")}, true, true,
		},
		"node CIDR not yet given": {
			[]string{"--detect-local-mode=NodeCIDR", "--cluster-cidr=10.244.0.0/16"}, nil, nil, service.Settings{}, false, false,
		},
		"ranges that contain each other": {
			[]string{"--nodeport-addresses=primary,192.168.0.0/16,192.168.1.0/24,fd00::/8"}, addrs("192.168.1.5", "fe80::1"), nil,
			service.Settings{NodePorts: prefixes("192.168.0.0/16", "fd00::/8", "fe80::1/128")}, false, false,
		},
		"egress addresses": {
			[]string{"--egress-addresses", "--pod-network=routes", "--cluster-cidr=10.244.0.0/16"}, addrs("192.168.1.5"), nil,
			service.Settings{Pods: prefixes("10.244.0.0/16"), NodePorts: prefixes("192.168.1.5/32")}, true, false,
		},
		"loopback is no primary address": {
			nil, addrs("127.0.0.1", "192.168.1.5"), nil, service.Settings{NodePorts: prefixes("192.168.1.5/32")}, false, false,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := load(test.args...)
			if err != nil {
				t.Fatal(err)
			}
			n := c.Node("zone-a", test.addrs, test.pods)
			got := n.Settings
			if !slices.Equal(got.Pods, test.want.Pods) || !slices.Equal(got.NodePorts, test.want.NodePorts) {
				t.Errorf("got  %v\nwant %v", got, test.want)
			}
			want := service.Node{Name: "host-1", Zone: "zone-a", MasqueradeAll: test.masqAll, Settings: got, EgressOff: !slices.Contains(test.args, "--egress-addresses")}
			want.NodeAddrs, want.OwnAddrs, want.Limits = n.NodeAddrs, n.NodeAddrs, service.DefaultLimits()
			want.Ejection = 10 * time.Second
			want.Primary4, want.Primary6 = n.Primary4, n.Primary6 // TestPrimary looks at those
			if is4, is6 := got.Detect(); !reflect.DeepEqual(n, want) || test.detect != (is4 || is6) {
				t.Errorf("node %+v, want %+v", n, want)
			}
		})
	}
}

// FuzzFile: whatever the file holds, there is a valid Config or an error of one line.
func FuzzFile(f *testing.F) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	f.Add(head + kubeadmFile)
	f.Add(head + "nodePortAddresses: [primary, 10.0.0.0/8]\n")
	f.Add(`{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration","oomScoreAdj":-1}`)
	f.Add(head + "mode: ipvs\nipvs: {scheduler: mh, excludeCIDRs: [10.0.0.0/8], tcpTimeout: 1s}\niptables: {masqueradeBit: 1, localhostNodePorts: true}\n")
	f.Add("---\n- \x00\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		kp := new(v1alpha1.KubeProxyConfiguration)
		err := configfile.Decode([]byte(text), kind, kp)
		if err == nil {
			r := &resolver{
				kp: kp, file: true, own: own{podNetwork: "none"},
				name: func(s string) string { return s }, changed: func(string) bool { return false },
			}
			var c *Config
			if c, err = r.resolve(func() (string, error) { return "n", nil }); err == nil {
				checkValid(t, c)
			}
		}
		if err != nil && (err.Error() == "" || strings.Contains(err.Error(), "\n")) {
			t.Errorf("error is not one line: %q", err)
		}
	})
}

func checkValid(t *testing.T, c *Config) {
	t.Helper()
	if !slices.Contains(Modes(), c.Mode) || c.NodeName == "" || c.SyncPeriod <= 0 || c.MinSyncPeriod < 0 || c.Mask() == 0 ||
		!c.Healthz.IsValid() || !c.Metrics.IsValid() {
		t.Errorf("not valid: %+v", c)
	}
	for _, p := range append(c.ClusterCIDRs, c.NodePorts.Prefixes...) {
		if !p.IsValid() || p != p.Masked() {
			t.Errorf("prefix %v is not one", p)
		}
	}
}

func TestPrimary(t *testing.T) {
	c, err := load("--bind-address=fd00::7")
	if err != nil {
		t.Fatal(err)
	}
	n := c.Node("", []netip.Addr{
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.168.1.5"),
		netip.MustParseAddr("fd00::5"), netip.MustParseAddr("192.168.1.6"),
	}, nil)
	if n.Primary4.String() != "192.168.1.5" || n.Primary6.String() != "fd00::7" {
		t.Errorf("primary addresses are %v and %v", n.Primary4, n.Primary6)
	}
}

func TestInterfaceDetectors(t *testing.T) {
	for want, args := range map[string][]string{
		"cni0":  {"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"},
		"veth*": {"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"},
	} {
		c, err := load(args...)
		if err != nil {
			t.Fatal(err)
		}
		s := c.Node("", nil, nil).Settings
		if is4, is6 := s.Detect(); !slices.Equal(s.PodInterfaces, []string{want}) || len(s.Pods) > 0 || !is4 || !is6 {
			t.Errorf("%q: settings %v", args, s)
		}
	}
	if _, err := load("--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=a/b"); err == nil {
		t.Error("a name with a slash is accepted")
	}
}

// TestBalance: what a Service that says nothing gets depends on the mode.
func TestBalance(t *testing.T) {
	for mode, want := range map[string]service.Algorithm{
		"nftables": service.Random, "iptables": service.Random, "ipvs": service.SourceHash, "userspace": service.RoundRobin,
	} {
		c, err := load("--proxy-mode="+mode, "--ipvs-scheduler=sh")
		if err != nil {
			t.Fatal(err)
		}
		if n := c.Node("", nil, nil); n.Balance != want {
			t.Errorf("mode %s: %v, want %v", mode, n.Balance, want)
		}
	}
}

// FuzzLoad: whatever the command line holds, there is a valid Config or an error of one
// line.
func FuzzLoad(f *testing.F) {
	f.Add("--proxy-mode=auto\n--cluster-cidr=10.0.0.0/8,fd00::/8\n-v=4")
	f.Add("--ipvs-exclude-cidrs=10.0.0.0/8, fd00::/8\n--ipvs-scheduler\nmh")
	f.Add("--nodeport-addresses=primary,all\n--feature-gates=AllowServiceExternalIPs=false\n--replace-kube-proxy")
	f.Add("--healthz-bind-address=::\n--metrics-bind-address=[::1]:1\n--sync-period=1s\n--min-sync-period=1h")
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--config") }) {
			return // FuzzFile does files, and need not open any
		}
		c, err := load(args...)
		if err != nil {
			if err.Error() == "" || !strings.Contains(text, err.Error()) && strings.ContainsAny(err.Error(), "\n") {
				t.Errorf("error is not one line: %q", err)
			}
			return
		}
		if !c.Healthz.IsValid() || !c.Metrics.IsValid() { // given but empty
			c.Healthz, c.Metrics = netip.MustParseAddrPort("[::]:1"), netip.MustParseAddrPort("[::]:2")
		}
		checkValid(t, c)
	})
}
