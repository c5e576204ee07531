package fabric

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDetach: Detach succeeds for a mount that another process has removed after the mounts were listed. TestTwoLabs
// once failed because another lab went down while one of its nodes started.
func TestDetach(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to unmount")
	}
	file := filepath.Join(t.TempDir(), "client")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Detach(file); err != nil {
		t.Errorf("nothing is mounted there: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := Detach(file); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}
