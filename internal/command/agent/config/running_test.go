package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestRunningArgs(t *testing.T) {
	for text, want := range map[string][]string{
		"/usr/bin/fairway\x00agent\x00--proxy-mode=ipvs\x00-v=2\x00": {"--proxy-mode=ipvs", "-v=2"},
		"fairway\x00agent\x00":           {},
		"fairway\x00dns\x00--conf=x\x00": nil,
		"bash\x00agent\x00--x\x00":       nil,
		"":                               nil,
	} {
		file := filepath.Join(t.TempDir(), "cmdline")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := RunningArgs(file); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := RunningArgs("/does/not/exist"); got != nil {
		t.Errorf("no file: %q", got)
	}
}

// TestToolFlags holds that a tool in the agent's pod starts from the agent's flags
// whatever else is given, and that given ones win.
func TestToolFlags(t *testing.T) {
	running := []string{"--cluster-cidr=10.244.0.0/16", "--proxy-mode=ipvs", "--nodeport-addresses=10.0.0.0/8",
		"--hostname-override=n", "--replace-kube-proxy", "--conntrack-max-per-core=7"}
	for _, c := range []struct{ given, want string }{
		{"", "ipvs [10.244.0.0/16] [10.0.0.0/8 ::/0]"},
		{"-v=4", "ipvs [10.244.0.0/16] [10.0.0.0/8 ::/0]"},
		{"--proxy-mode=iptables", "iptables [10.244.0.0/16] [10.0.0.0/8 ::/0]"},
		{"--cluster-cidr=10.9.0.0/16 --nodeport-addresses=10.1.0.0/16,10.2.0.0/16", "ipvs [10.9.0.0/16] [10.1.0.0/16 10.2.0.0/16 ::/0]"},
	} {
		fs := pflag.NewFlagSet("diff", pflag.ContinueOnError)
		flags := NewToolFlags(fs)
		if err := fs.Parse(strings.Fields(c.given)); err != nil {
			t.Fatal(err)
		}
		cfg, err := flags.Load(running)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(cfg.Mode, " ", cfg.ClusterCIDRs, " ", cfg.NodePorts.Prefixes); got != c.want {
			t.Errorf("given %q: %s, want %s", c.given, got, c.want)
		}
	}
	for _, flag := range []string{"--cleanup", "--replace-kube-proxy", "--oom-score-adj=1", "--conntrack-max-per-core=1", "--sync-period=1s"} {
		fs := pflag.NewFlagSet("diff", pflag.ContinueOnError)
		fs.SetOutput(io.Discard)
		NewToolFlags(fs)
		if err := fs.Parse([]string{flag}); err == nil {
			t.Errorf("%s is taken", flag)
		}
	}
	fs := pflag.NewFlagSet("diff", pflag.ContinueOnError)
	flags := NewToolFlags(fs)
	if err := fs.Parse([]string{"--cluster-cidr=10.9.0.0/16"}); err != nil {
		t.Fatal(err)
	}
	if _, err := flags.Load([]string{"--config=/c.yaml"}); err == nil || !strings.Contains(err.Error(), "beside which --cluster-cidr") {
		t.Errorf("a flag that the agent ignores: %v", err)
	}
}

// TestArgsOf: on another machine a command starts from the agents' ConfigMap, and a given flag wins.
func TestArgsOf(t *testing.T) {
	settings := map[string]string{
		"FAIRWAY_API_SERVER": "https://192.0.2.1:6443", "CLUSTER_CIDR": "10.244.0.0/16", "PROXY_MODE": "auto", "REFUSE_EXTERNAL_IPS": "true",
		"POD_NETWORK": "vxlan", "NETWORK_POLICY": "true", "LOG_FORMAT": "json", "UNKNOWN": "x",
	}
	for given, cidr := range map[string]string{"": "10.244.0.0/16", "--cluster-cidr=10.1.0.0/16": "10.1.0.0/16"} {
		fs := pflag.NewFlagSet("tool", pflag.ContinueOnError)
		flags := NewToolFlags(fs)
		if err := fs.Parse(strings.Fields(given)); err != nil {
			t.Fatal(err)
		}
		c, err := flags.Load(ArgsOf(settings))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.ClusterCIDRs, c.Mode, c.RefuseExternalIPs, c.PodNetwork, c.NetworkPolicy, c.Master); got != "["+cidr+"]nftablestruevxlantrue" {
			t.Errorf("with %q: %s", given, got)
		}
	}
}
