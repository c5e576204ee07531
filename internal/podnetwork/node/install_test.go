package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigComesLast: no configuration, so no Ready node, before pods can work.
func TestConfigComesLast(t *testing.T) {
	c := newCluster(t, 1, dual)
	m := c.machines[0]
	path := filepath.Join(m.config.CNIConfDir, configName)
	missing := func(when string) {
		t.Helper()
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s there is a configuration (%v)", when, err)
		}
	}
	ready := 0
	m.config.Ready = func(context.Context) error { ready++; return nil }
	m.restart()
	cidrs := m.peer.PodCIDRs
	m.peer.PodCIDRs = nil
	m.mustSync(nil)
	missing("without podCIDRs")

	m.peer.PodCIDRs = cidrs
	m.run("nft delete table inet fairway-pods")
	t.Setenv("PATH", t.TempDir()) // no nft
	if err := m.sync(nil); err == nil || !strings.Contains(err.Error(), "apt-get install nftables") {
		t.Errorf("without nft: %v", err)
	}
	missing("when masquerading failed")
	if ready != 0 {
		t.Error("a node that can start no pod was reported ready")
	}

	t.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	m.mustSync(nil)
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), "portmap") || !strings.Contains(string(text), `"mtu": 1450`) {
		t.Errorf("configuration without portmap and with the uplink's MTU: %s %v", text, err)
	}
	if ready != 1 {
		t.Errorf("the node was reported ready %d times", ready)
	}
	if err := os.WriteFile(filepath.Join(m.config.CNIBinDir, "portmap"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	m.mustSync(nil)
	if text, _ := os.ReadFile(path); !strings.Contains(string(text), `"portmap"`) {
		t.Errorf("portmap is not chained: %s", text)
	}
	m.config.RecordHostPorts = true
	m.restart()
	m.mustSync(nil)
	if text, _ := os.ReadFile(path); strings.Contains(string(text), `"portmap"`) || !strings.Contains(string(text), `"portMappings": true`) {
		t.Errorf("the plugin does not record host ports itself: %s", text)
	}
	m.peer.PodCIDRs = nil
	m.mustSync(nil)
	missing("after the podCIDRs went")
}

// TestPluginIsReplaced when it is another program, and only then; a loopback
// plugin of a package is left alone.
func TestPluginIsReplaced(t *testing.T) {
	c := newCluster(t, 1, v4)
	m := c.machines[0]
	if err := os.MkdirAll(m.config.CNIBinDir, 0o755); err != nil {
		t.Fatal(err)
	}
	plugin, loopback := filepath.Join(m.config.CNIBinDir, "fairway-cni"), filepath.Join(m.config.CNIBinDir, "loopback")
	for _, file := range []string{plugin, loopback, filepath.Join(m.config.CNIBinDir, temporary+"crashed")} {
		if err := os.WriteFile(file, []byte("other"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.mustSync(nil)
	self, _ := os.Executable()
	if !sameContent(self, plugin) {
		t.Error("the plugin is not this program")
	}
	if text, _ := os.ReadFile(loopback); string(text) != "other" {
		t.Error("a foreign loopback plugin was replaced")
	}
	if files, _ := filepath.Glob(filepath.Join(m.config.CNIBinDir, ".*")); len(files) != 0 {
		t.Errorf("temporary files are left: %v", files)
	}
	// Overwritten with the same size: found by the time of modification.
	if err := os.WriteFile(plugin, make([]byte, fileSize(t, plugin)), 0o755); err != nil {
		t.Fatal(err)
	}
	m.mustSync(nil)
	if !sameContent(self, plugin) {
		t.Error("a damaged plugin was not mended")
	}
}

// TestPluginIsMissing: an agent without the plugin's program beside it says what is missing
// and writes no configuration, so that the node does not become Ready.
func TestPluginIsMissing(t *testing.T) {
	c := newCluster(t, 1, v4)
	m := c.machines[0]
	m.config.Plugin = "" // beside the test binary there is none
	m.restart()
	if err := m.sync(nil); err == nil || !strings.Contains(err.Error(), "beside the program fairway") {
		t.Errorf("without a plugin: %v", err)
	}
	if _, err := os.Stat(filepath.Join(m.config.CNIConfDir, configName)); !os.IsNotExist(err) {
		t.Errorf("there is a configuration (%v)", err)
	}
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
