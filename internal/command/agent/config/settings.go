package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// settingFlags maps the keys of the ConfigMap fairway-agent to flags.
var settingFlags = []struct{ key, flag string }{
	{"FAIRWAY_API_SERVER", "master"},
	{"CLUSTER_CIDR", "cluster-cidr"},
	{"PROXY_MODE", "proxy-mode"},
	{"REPLACE_KUBE_PROXY", "replace-kube-proxy"},
	{"REFUSE_EXTERNAL_IPS", "refuse-external-ips"},
	{"POD_NETWORK", "pod-network"},
	{"NON_MASQUERADE_CIDRS", "non-masquerade-cidrs"},
	{"EGRESS_ADDRESSES", "egress-addresses"},
	{"NETWORK_POLICY", "network-policy"},
	{"NETWORK_POLICY_LOG", "network-policy-log"},
	{"NETWORK_POLICY_REJECT", "network-policy-reject"},
	{"LOG_FORMAT", "log-format"},
}

// Settings returns the content of --settings-dir, one "KEY=value" a line. It returns "" without the flag. Equal texts
// mean equal settings.
func (f *Flags) Settings() (string, error) {
	var text strings.Builder
	if f.own.settingsDir == "" {
		return "", nil
	}
	dir := f.own.settingsDir
	// The kubelet replaces all files at once by changing this link.
	if now, err := filepath.EvalSymlinks(filepath.Join(dir, "..data")); err == nil {
		dir = now
	}
	for _, s := range settingFlags {
		value, err := os.ReadFile(filepath.Join(dir, s.key))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the flag counts
		}
		if err != nil {
			return "", fmt.Errorf("--settings-dir: %w", err)
		}
		fmt.Fprintf(&text, "%s=%s\n", s.key, strings.TrimSpace(string(value)))
	}
	return text.String(), nil
}

// applySettings sets the flags from --settings-dir.
func (f *Flags) applySettings() error {
	text, err := f.Settings()
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		for _, s := range settingFlags {
			if s.key != key {
				continue
			}
			if err := f.fs.Set(s.flag, value); err != nil {
				return fmt.Errorf("setting %s: %w", key, err)
			}
		}
	}
	return nil
}
