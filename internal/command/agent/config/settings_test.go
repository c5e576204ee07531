package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// TestSettingsAreThoseOfDeploy holds that each key of the ConfigMap is followed, and that the
// DaemonSet gives the same flag at the start.
func TestSettingsAreThoseOfDeploy(t *testing.T) {
	text, err := os.ReadFile("../../../../deploy/agent/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var deployed struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(text, &deployed); err != nil {
		t.Fatal(err)
	}
	agent, err := os.ReadFile("../../../../deploy/agent/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{"SERVICELB_RANGES"} // the controller reads it
	for _, s := range settingFlags {
		keys = append(keys, s.key)
		if want := "--" + s.flag + "=$(" + s.key + ")\n"; !strings.Contains(string(agent), want) {
			t.Errorf("the DaemonSet has no argument %q", want)
		}
	}
	slices.Sort(keys)
	if have := slices.Sorted(maps.Keys(deployed.Data)); !slices.Equal(have, keys) {
		t.Errorf("the ConfigMap has the keys\n%v\nthe agent follows\n%v", have, keys)
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
