package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/fairway-net/fairway/internal/operate/settings"
)

// TestSettingsGo: settings win over flags, an empty one counts as none, and what goes gives the flag its value back.
func TestSettingsGo(t *testing.T) {
	dir := t.TempDir()
	write := func(key, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags := NewFlags(fs)
	if err := fs.Parse([]string{"--settings-dir", dir, "--nodeport-addresses", "10.0.0.0/8,::/0", "--sync-period=9s", "--hostname-override=n"}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOST_IP", "192.0.2.7")
	for _, c := range []struct{ ports, period, metrics, want string }{
		{"", "", "", "false [10.0.0.0/8 ::/0] 9s 127.0.0.1:10249"},
		{"primary", "8s", "node", "true [] 8s 192.0.2.7:10249"},
		{"192.0.2.0/24, 2001:db8::/64", "8s\n", "node:9", "false [192.0.2.0/24 2001:db8::/64] 8s 192.0.2.7:9"},
		{"all", "", "0.0.0.0", "false [0.0.0.0/0 ::/0] 9s 0.0.0.0:10249"},
		{"", "", "", "false [10.0.0.0/8 ::/0] 9s 127.0.0.1:10249"},
	} {
		write("NODEPORT_ADDRESSES", c.ports)
		write("SYNC_PERIOD", c.period)
		write("METRICS_BIND_ADDRESS", c.metrics)
		cfg, err := flags.Load()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(cfg.NodePorts.Primary, " ", cfg.NodePorts.Prefixes, " ", cfg.SyncPeriod, " ", cfg.Metrics); got != c.want {
			t.Errorf("with %+v: %s", c, got)
		}
	}
	write("REFUSE_EXTERNAL_IPS", "maybe")
	if _, err := flags.Load(); err == nil || err.Error() != `setting REFUSE_EXTERNAL_IPS: "maybe" is not one of true, false` {
		t.Errorf("a word that is no truth value: %v", err)
	}
	write("REFUSE_EXTERNAL_IPS", "true")
	t.Setenv("HOST_IP", "")
	write("METRICS_BIND_ADDRESS", "node")
	if _, err := flags.Load(); err == nil || !strings.Contains(err.Error(), `--metrics-bind-address: "node" is the address in $HOST_IP, which is ""`) {
		t.Errorf("without the node's address: %v", err)
	}
}

// TestWords: the registry has the words that the flags take.
func TestWords(t *testing.T) {
	for key, want := range map[string][]string{"PROXY_MODE": Modes(), "POD_NETWORK": PodNetworks()} {
		if s, _ := settings.For(key); fmt.Sprint(s.Words) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", key, s.Words, want)
		}
	}
}

// TestNoAPIServer: in a pod, the variables lead to a Service, which works only when the agent has written it.
func TestNoAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	flags := NewFlags(fs)
	if err := fs.Parse([]string{"--settings-dir", t.TempDir(), "--hostname-override=n"}); err != nil {
		t.Fatal(err)
	}
	if _, err := flags.Load(); err == nil || !strings.HasPrefix(err.Error(), "FAIRWAY_API_SERVER is not set") {
		t.Errorf("%v", err)
	}
}

// TestSettingsAndTools: a command reads the settings as the agent does; a flag that is given to
// it wins.
func TestSettingsAndTools(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "PROXY_MODE"), []byte("iptables"), 0o600); err != nil {
		t.Fatal(err)
	}
	running := []string{"--settings-dir", dir, "--proxy-mode", "nftables", "--hostname-override", "n"}
	for _, c := range []struct {
		want  string
		given []string
	}{{"iptables", nil}, {"userspace", []string{"--proxy-mode", "userspace"}}} {
		fs := pflag.NewFlagSet("diff", pflag.ContinueOnError)
		tool := NewToolFlags(fs)
		if err := fs.Parse(c.given); err != nil {
			t.Fatal(err)
		}
		cfg, err := tool.Load(running)
		if err != nil || cfg.Mode != c.want {
			t.Errorf("with %v the mode is %v, %v; want %s", c.given, cfg, err, c.want)
		}
	}
}
