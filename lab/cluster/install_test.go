package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/lab/fabric"
)

// TestInstall installs and removes Fairway with `fairway install` and its related commands, on an empty cluster.
func TestInstall(t *testing.T) {
	beside(t, 1)
	newUndo(t).install()
}

// fairway runs the program as the cluster's administrator.
func (u *undo) fairway(args ...string) string {
	u.Helper()
	out, err := u.tryFairway(args...)
	if err != nil {
		u.Fatalf("fairway %s: %v:\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (u *undo) tryFairway(args ...string) (string, error) {
	cmd := exec.CommandContext(u.Context(), built.fairway, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(u.lab.dir(), "kubeconfig"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// refuses fails the test unless the program refuses the command with a text that contains want.
func (u *undo) refuses(want string, args ...string) {
	u.Helper()
	out, err := u.tryFairway(args...)
	if err == nil || !strings.Contains(out, want) {
		u.Errorf("fairway %s: %v, want a refusal with %q:\n%s", strings.Join(args, " "), err, want, out)
	}
}

// says fails the test unless text contains each of the lines.
func (u *undo) says(text string, lines ...string) {
	u.Helper()
	for _, want := range lines {
		if !strings.Contains(text, want) {
			u.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

// install installs and removes Fairway with `fairway install` and its related commands, on an empty cluster.
func (u *undo) install() {
	plan := fabric.Plan{Family: fabric.IPv4}
	pods := "--cluster-cidr=" + plan.Pods()[0].String()
	u.says(u.fairway("install", pods, "--dry-run"), "API server   "+plan.APIServer(), "pod network  Fairway's",
		"create  DaemonSet kube-system/fairway-agent", "nothing was changed")
	u.same()
	u.says(u.fairway("install", pods), "done: revision 1")
	u.there("nftables")
	u.answers("by Fairway")
	u.says(u.fairway("upgrade", "--proxy-mode", "userspace", "--dry-run"), "data.PROXY_MODE: nftables -> userspace", "same    Service kube-system/kube-dns")
	u.says(u.fairway("upgrade", "--proxy-mode", "userspace"), "done: revision 2")
	u.there("userspace")
	u.says(u.fairway("rollback"), "back to revision 1", "done: revision 3")
	u.there("nftables")
	u.says(u.fairway("uninstall"), "nothing is left on the nodes")
	u.same()
}
