package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestEdgeUnit has systemd read the edge's unit, and holds that the process has the capabilities that the
// tests of cmd/fairway give it, and no other.
func TestEdgeUnit(t *testing.T) {
	text, err := os.ReadFile("edge/fairway-edge.service")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nCapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW\n") {
		t.Error("the unit's capabilities are others than those that TestEdge… runs with")
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze: ", err)
	}
	unit := filepath.Join(t.TempDir(), "fairway-edge.service")
	if err := os.WriteFile(unit, []byte(strings.ReplaceAll(string(text), "/usr/local/bin/fairway", "/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || strings.Contains(string(out), "fairway-edge.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
