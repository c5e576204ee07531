package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/fairway-net/fairway/lab/toolbox"
)

// writeTools writes the scripts of package toolbox to the first directory in the PATH of the node's commands.
func writeTools() error {
	if err := os.MkdirAll(toolbox.Bin, 0o755); err != nil {
		return fmt.Errorf("create %s: %w", toolbox.Bin, err)
	}
	scripts := map[string]string{"apt": toolbox.Apt, "apt-get": toolbox.Apt, "fairway": toolbox.Fairway}
	for _, name := range []string{"iptables", "ip6tables"} {
		if _, err := exec.LookPath("iptables-nft"); err == nil {
			scripts[name] = toolbox.Iptables
		}
	}
	if _, err := exec.LookPath("sudo"); err != nil {
		scripts["sudo"] = toolbox.Sudo
	}
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(toolbox.Bin, name), []byte(text), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(toolbox.Bin), "packages"), []byte(toolbox.List()), 0o644); err != nil {
		return fmt.Errorf("write list of packages: %w", err)
	}
	return nil
}
