package node

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/podnetwork/plan"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestConfigOrder: the log, an event and the status say that the runtime uses another program's configuration, until it is gone.
func TestConfigOrder(t *testing.T) {
	dir, log := t.TempDir(), &testnet.Log{}
	write := func(names ...string) {
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	var events []string
	state := ""
	n := New(Config{
		Log: slog.New(slog.NewTextHandler(log, nil)), CNIConfDir: dir, Now: func(text string) { state = text },
		Event: func(node, reason, _ string) { events = append(events, node+" "+reason) },
	})
	write(configName, "00-multus.conf", "87-podman-bridge.conflist", "10-flannel.conflist", "05-cilium.conflist.disabled", ".conf.swp")
	n.report(n.configOrder("node-1"))
	if state != "" || len(events) > 0 {
		t.Errorf("ours is the first: %q, %v", state, events)
	}
	write("05-cilium.conflist", "10-calico.conflist")
	if got := ConfigsBefore(dir); !slices.Equal(got, []string{"05-cilium.conflist", "10-calico.conflist"}) {
		t.Errorf("before ours: %v", got)
	}
	n.report(n.configOrder("node-1"))
	n.report(n.configOrder("node-1"))
	if !strings.Contains(state, filepath.Join(dir, "05-cilium.conflist")) || !slices.Equal(events, []string{"node-1 " + plan.ReasonConfigOrder}) || log.Count("05-cilium") != 1 {
		t.Errorf("Cilium's is the first: %q, %v", state, events)
	}
	for _, name := range []string{"05-cilium.conflist", "10-calico.conflist"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if n.report(n.configOrder("node-1")); state != "" || ConfigsBefore(filepath.Join(dir, "none")) != nil {
		t.Errorf("it is gone: %q", state)
	}
}
