package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mistakes are command lines, each with a mistake, and what is said of it. An empty text is
// for those that need further flags.
func mistakes(t *testing.T) map[string]struct{ arg, want string } {
	file := func(lines string) string { return "--config=" + write(t, lines) }
	raw := func(text string) string {
		path := filepath.Join(t.TempDir(), "raw.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--config=" + path
	}
	return map[string]struct{ arg, want string }{
		"mode":             {"--proxy-mode=magic", `--proxy-mode: "magic" is not a proxy mode [choose one of nftables, iptables, ipvs, userspace, ebpf, auto, none]`},
		"mode, file":       {file("mode: kernelspace"), `mode: "kernelspace" is not a proxy mode [choose one of nftables, iptables, ipvs`},
		"replace by none":  {"--replace-kube-proxy", ""},
		"scheduler":        {"--ipvs-scheduler=fastest", `--ipvs-scheduler: invalid value "fastest" (allowed: random, rr, lc`},
		"scheduler, file":  {file("mode: nftables\nipvs: {scheduler: fastest}"), `ipvs.scheduler: invalid value "fastest" (allowed:`},
		"excluded":         {"--ipvs-exclude-cidrs=10.0.0.1", `--ipvs-exclude-cidrs: "10.0.0.1" is not a CIDR`},
		"IPVS timeout":     {"--ipvs-udp-timeout=-1s", "--ipvs-udp-timeout: -1s: must not be less than 0"},
		"iptables' bit":    {file("mode: ipvs\niptables: {masqueradeBit: 40}"), "iptables.masqueradeBit: 40: must be in 0-31"},
		"IPVS' period":     {file("mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}"), "ipvs.minSyncPeriod: 2s: must not be more than"},
		"cluster CIDR":     {"--cluster-cidr=10.244.0.0", `--cluster-cidr: "10.244.0.0" is not a CIDR`},
		"mixed families":   {"--cluster-cidr=::ffff:10.0.0.0/100", "mixes IPv4 and IPv6"},
		"detector":         {"--detect-local-mode=BridgeInterface", "--pod-bridge-interface: \"\" is not the name of an interface, which detectLocalMode BridgeInterface needs"},
		"no detector":      {"--detect-local-mode=magic", `--detect-local-mode: "magic" is not one of ClusterCIDR, NodeCIDR`},
		"node ports":       {"--nodeport-addresses=primry", `--nodeport-addresses: "primry" is not a CIDR`},
		"healthz":          {"--healthz-bind-address=localhost:1", `--healthz-bind-address: "localhost:1" is not IP:port`},
		"metrics port":     {"--metrics-bind-address=127.0.0.1:0", "--metrics-bind-address"},
		"same port":        {"--metrics-bind-address=0.0.0.0:10256", "already that of healthzBindAddress"},
		"bind address":     {"--bind-address=here", `--bind-address: "here" is not an IP address`},
		"masquerade bit":   {"--nftables-masquerade-bit=32", "--nftables-masquerade-bit: 32: must be in 0-31"},
		"period":           {"--sync-period=0", "--sync-period 0s: must be more than 0"},
		"min period":       {"--min-sync-period=31s", "--min-sync-period: 31s: must not be more than --sync-period, 30s"},
		"negative":         {"--min-sync-period=-1s", "--min-sync-period: -1s: must not be less than 0"},
		"oom":              {"--oom-score-adj=-1001", "--oom-score-adj: -1001: must be in -1000-1000"},
		"burst":            {"--kube-api-burst=-1", "--kube-api-burst: -1"},
		"log format":       {"--log-format=xml", `--log-format: "xml" is not a format [choose text or json]`},
		"log format, file": {file("logging: {format: xml}"), `logging.format: "xml" is not a format`},
		"placeholder":      {"--master=https://set-fairway-api-server-in-agent-config.invalid:6443", "FAIRWAY_API_SERVER is not set: --master is still https://set-fairway-api-server"},
		"log level":        {"--log-level=loud", `--log-level "loud": must be debug, info, warn or error`},
		"pod network":      {"--pod-network=geneve", `--pod-network "geneve": must be one of none, routes, vxlan, auto, wireguard, bgp`},
		"blank name":       {"--hostname-override= ", "--hostname-override: must not be blank"},
		"unknown flag":     {"--proxymode=nftables", "unknown flag: --proxymode"},
		"no file":          {"--config=/nonexistent/file", "read configuration: open /nonexistent/file: no such file or directory"},
		"unknown field":    {file("nftables:\n  masqueradeBits: 3\n"), `unknown field "nftables.masqueradeBits"`},
		"field twice":      {file("mode: nftables\nmode: none\n"), `"mode" already set`},
		"wrong type":       {file("oomScoreAdj: lots"), "oomScoreAdj"},
		"no YAML":          {raw("a: [b"), "yaml"},
		"empty file":       {raw(""), `it is apiVersion "", kind ""; want apiVersion "kubeproxy.config.k8s.io/v1alpha1", kind "KubeProxyConfiguration"`},
		"a list":           {raw("- 1\n- 2\n"), "it is no KubeProxyConfiguration"},
		"another kind":     {raw("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfoo: 1\n"), `it is apiVersion "kubelet.config.k8s.io/v1beta1"`},
		"two documents":    {file("mode: nftables\n---\nkind: Other\n"), "more than one YAML document"},
		"file's CIDR":      {file("clusterCIDR: nowhere"), `clusterCIDR: "nowhere" is not a CIDR`},
		"file's period":    {file("nftables:\n  syncPeriod: -3s\n"), "nftables.syncPeriod: -3s: must be more than 0"},
		"file's bad time":  {file("nftables:\n  syncPeriod: 3 weeks\n"), "3 weeks"},
		"relative CNI dir": {"--cni-bin-dir=bin", ""},
	}
}

// TestMistakes: every mistake costs one line, and it says where.
func TestMistakes(t *testing.T) {
	for name, test := range mistakes(t) {
		t.Run(name, func(t *testing.T) {
			args := []string{test.arg}
			switch {
			case test.want == "" && test.arg == "--replace-kube-proxy":
				args, test.want = append(args, "--proxy-mode=none", "--pod-network=routes"), "nobody would carry Services"
			case test.want == "":
				args, test.want = append(args, "--pod-network=routes"), `--cni-bin-dir "bin": must be an absolute path`
			}
			_, err := load(args...)
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q\nwant   %q in it", err, test.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
		})
	}
}
