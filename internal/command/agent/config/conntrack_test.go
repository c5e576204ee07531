package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// byDefault is kube-proxy's.
func byDefault() Conntrack {
	return Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}
}

func TestConntrack(t *testing.T) {
	all := Conntrack{MaxPerCore: 1, Min: 2, TCPEstablished: 3 * time.Second, TCPCloseWait: 4 * time.Second, UDP: 5 * time.Second, UDPStream: 6 * time.Second, TCPBeLiberal: true}
	leave := Conntrack{}
	for name, c := range map[string]struct {
		flags string
		file  string
		want  Conntrack
		fails string
	}{
		"by default":           {want: byDefault()},
		"a file with defaults": {file: "clusterCIDR: 10.0.0.0/8\nconntrack: {maxPerCore: null, min: null, udpTimeout: 0s}\n", want: byDefault()},
		"all, as flags": {want: all, flags: "--conntrack-max-per-core=1 --conntrack-min=2 --conntrack-tcp-timeout-established=3s " +
			"--conntrack-tcp-timeout-close-wait=4s --conntrack-udp-timeout=5s --conntrack-udp-timeout-stream=6s --conntrack-tcp-be-liberal"},
		"all, in a file": {want: all, file: "clusterCIDR: 10.0.0.0/8\nconntrack: {maxPerCore: 1, min: 2, tcpEstablishedTimeout: 3s, tcpCloseWaitTimeout: 4s, udpTimeout: 5s, udpStreamTimeout: 6s, tcpBeLiberal: true}\n"},
		"nothing":        {want: leave, file: "clusterCIDR: 10.0.0.0/8\nconntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n"},
		"negative":       {flags: "--conntrack-min=-1", fails: "--conntrack-min: -1: must not be less than 0"},
		"negative time":  {flags: "--conntrack-tcp-timeout-close-wait=-1s", fails: "--conntrack-tcp-timeout-close-wait: -1s: must not be less than 0"},
		"in a file":      {file: "conntrack: {udpTimeout: -1s}\n", fails: "conntrack.udpTimeout: -1s: must not be less than 0"},
	} {
		args := append(strings.Fields(c.flags), "--cluster-cidr=10.0.0.0/8")
		if c.file != "" {
			path := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(path, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			args = []string{"--config=" + path}
		}
		got, err := load(args...)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: error %v, want %q", name, err, c.fails)
			}
			continue
		}
		if err != nil || got.Conntrack != c.want || len(got.Warnings) > 0 {
			t.Errorf("%s: %v, warnings %v, error %v; want %v", name, got.Conntrack, got.Warnings, err, c.want)
		}
	}
}

// TestConntrackMax follows the machine, as kube-proxy does.
func TestConntrackMax(t *testing.T) {
	for _, c := range []struct {
		conntrack   Conntrack
		cores, want int
	}{
		{byDefault(), 1, 131072},
		{byDefault(), 4, 131072},
		{byDefault(), 16, 524288},
		{byDefault(), 256, 1 << 20},
		{Conntrack{MaxPerCore: 100_000, Min: 2 << 20}, 256, 2 << 20},
		{Conntrack{Min: 131072}, 16, 0},
		{Conntrack{MaxPerCore: 10}, 16, 160},
	} {
		if got := c.conntrack.Max(c.cores); got != c.want {
			t.Errorf("%+v with %d cores: %d, want %d", c.conntrack, c.cores, got, c.want)
		}
	}
}
