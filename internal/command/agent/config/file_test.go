package config

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/service"
)

// kubeadmFile is what kubeadm 1.33 writes for its own kube-proxy, with mode set.
const kubeadmFile = `bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16,fd00:10:244::/56
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
`

func loopbacks(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func TestFile(t *testing.T) {
	tests := map[string]struct {
		lines string
		args  []string
		want  func(*Config)
		warns []string // a piece of each warning
	}{
		"kubeadm's": {kubeadmFile, nil, func(c *Config) {
			c.Kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf"
			c.ClusterCIDRs = prefixes("10.244.0.0/16", "fd00:10:244::/56")
		}, nil},
		"with a document start": {"clusterCIDR: 10.244.0.0/16\n---\n", nil, func(*Config) {}, nil},
		"flags that win": {
			"clusterCIDR: 10.244.0.0/16\nhostnameOverride: file\nlogging: {verbosity: 2}\n",
			[]string{"--hostname-override=flag", "--master=http://127.0.0.1:1", "-v=4", "--pod-network=routes"},
			func(c *Config) {
				c.NodeName, c.Master, c.LogLevel, c.PodNetwork, c.PodFragments = "flag", "http://127.0.0.1:1", -4, "routes", 2500
			}, nil,
		},
		"flags that lose": {
			"clusterCIDR: 10.244.0.0/16\nhostnameOverride: File\nlogging: {verbosity: 2}\n",
			[]string{"--kubeconfig=/k", "--cluster-cidr=1.0.0.0/8", "--masquerade-all", "--healthz-bind-address="},
			func(c *Config) { c.NodeName, c.LogLevel = "file", -2 },
			[]string{"--cluster-cidr, --healthz-bind-address, --kubeconfig, --masquerade-all"},
		},
		"without a mode the section of iptables counts": {
			"clusterCIDR: 10.244.0.0/16\niptables: {masqueradeAll: true, masqueradeBit: 7, syncPeriod: 9s, minSyncPeriod: 1s}\n", nil,
			func(c *Config) {
				c.MasqueradeAll, c.MasqueradeBit, c.SyncPeriod, c.MinSyncPeriod = true, 7, 9*time.Second, time.Second
			}, nil,
		},
		"with a mode it does not": {
			"mode: nftables\nclusterCIDR: 10.244.0.0/16\niptables: {masqueradeAll: true, masqueradeBit: 7}\nnftables: {masqueradeBit: 8}\n", nil,
			func(c *Config) { c.MasqueradeBit = 8 }, []string{"in mode nftables these have no effect: iptables.masquerade*"},
		},
		"of our own, beside a file": {
			"clusterCIDR: 10.244.0.0/16\n", []string{"--count-traffic", "--replace-kube-proxy"},
			func(c *Config) { c.CountTraffic, c.ReplaceKubeProxy = true, true }, nil,
		},
		"what is not done yet": {
			"clusterCIDR: 10.244.0.0/16\nfeatureGates: {A: true}\nenableProfiling: true\nshowHiddenMetricsForVersion: '1.36'\n", nil,
			func(*Config) {}, []string{"featureGates", "enableProfiling", "showHiddenMetricsForVersion"},
		},
		"one family of node ports": {
			"clusterCIDR: 10.244.0.0/16\nnodePortAddresses: [10.0.0.0/8, localhost]\n", nil,
			func(c *Config) {
				c.NodePorts = NodePorts{Prefixes: prefixes("10.0.0.0/8", "::/0"), Loopback: loopbacks("127.0.0.1", "::1")}
			},
			[]string{"::/0"},
		},
		"loopback ranges for node ports": {
			"clusterCIDR: 10.244.0.0/16\nnodePortAddresses: [primary, 127.0.0.0/8, 127.0.0.7/32, '::1/128', 127.0.0.1/32]\n", nil,
			func(c *Config) {
				c.NodePorts = NodePorts{Primary: true, Prefixes: prefixes("127.0.0.0/8", "127.0.0.7/32", "::1/128", "127.0.0.1/32"), Loopback: loopbacks("127.0.0.1", "127.0.0.7", "::1")}
			}, nil,
		},
		"all addresses for node ports, which loopback is none of": {
			"clusterCIDR: 10.244.0.0/16\nnodePortAddresses: [all]\n", nil,
			func(c *Config) { c.NodePorts = NodePorts{Prefixes: prefixes("0.0.0.0/0", "::/0")} }, nil,
		},
		"no cluster CIDR": {"mode: nftables", nil, func(c *Config) { c.ClusterCIDRs = nil }, []string{"clusterCIDR is not set"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			checkFile(t, append(test.args, "--config="+write(t, test.lines)), test.want, test.warns)
		})
	}
}

// TestFileModes: the section that counts is the mode's, and what is idle is named.
func TestFileModes(t *testing.T) {
	tests := map[string]struct {
		lines string
		args  []string
		want  func(*Config)
		warns []string
	}{
		"mode iptables": {
			"mode: iptables\nclusterCIDR: 10.244.0.0/16\niptables: {masqueradeAll: true, masqueradeBit: 7, syncPeriod: 9s, minSyncPeriod: 1s, localhostNodePorts: true}\nnftables: {masqueradeBit: 8, syncPeriod: 3s}\n", nil,
			func(c *Config) {
				c.Mode, c.MasqueradeAll, c.MasqueradeBit, c.SyncPeriod, c.MinSyncPeriod = "iptables", true, 7, 9*time.Second, time.Second
				c.Limits.Endpoints, c.Limits.Frontends = 5000, 2000
			},
			[]string{"iptables.localhostNodePorts has no effect: NodePorts are not served on 127.0.0.1", "in mode iptables these have no effect: nftables.masquerade*, nftables.*Period"},
		},
		"mode ipvs": {
			"mode: ipvs\nclusterCIDR: 10.244.0.0/16\niptables: {masqueradeBit: 7, syncPeriod: 5s}\nipvs: {scheduler: sed, strictARP: true, excludeCIDRs: [10.9.0.0/16], syncPeriod: 9s, udpTimeout: 4s}\nwinkernel: {sourceVip: 1.2.3.4}\n", nil,
			func(c *Config) {
				c.Mode, c.MasqueradeBit, c.SyncPeriod = "ipvs", 7, 9*time.Second
				c.IPVS = IPVS{Scheduler: service.ShortestDelay, UDP: 4 * time.Second}
			},
			[]string{"ipvs.excludeCIDRs has no effect: virtual servers that others", "ipvs.strictARP has no effect", "in mode ipvs these have no effect: winkernel.sourceVip, iptables.*Period"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			checkFile(t, []string{"--config=" + write(t, test.lines)}, test.want, test.warns)
		})
	}
}

// checkFile holds what the arguments make of the defaults against want.
func checkFile(t *testing.T, args []string, change func(*Config), warns []string) {
	t.Helper()
	got, err := load(args...)
	if err != nil {
		t.Fatal(err)
	}
	checkWarnings(t, got.Warnings, warns)
	got.Warnings = nil
	want := defaults()
	change(want)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func checkWarnings(t *testing.T, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d warnings %q, want %d: %q", len(got), got, len(want), want)
	}
	for i, w := range want {
		if !strings.Contains(got[i], w) {
			t.Errorf("warning %q, want %q in it", got[i], w)
		}
	}
}
