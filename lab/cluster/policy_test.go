package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestNetworkPolicy runs the commands of docs/networkpolicy.md in a lab. A command with the remark "allowed" or
// "denied" must reach that outcome, and every other command must succeed. Then the test reboots a node. The mode is
// nftables, or FAIRWAY_POLICY_MODE.
func TestNetworkPolicy(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	args := []string{"--nodes", "2", "--dual-stack", "--network-policy", "--load-balancer", "none"}
	if mode := os.Getenv("FAIRWAY_POLICY_MODE"); mode != "" { // make test-policy
		args = append(args, "--proxy-mode", mode)
	}
	l.run(l.upArgs(args...)...)
	l.followPolicies()
	l.testReboot()
	l.run("down")
	l.gone()
}

// TestPolicyAlone runs the same commands with an agent that only enforces policies. The lab has the real kube-proxy,
// and the reference plugins bridge and host-local.
func TestPolicyAlone(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "2", "--dual-stack", "--network-policy", "--load-balancer", "none", "--kube-proxy", built.kubeProxy, "--pod-network", "bridge")...)
	if out := l.run("node", "1", "--", "nft", "list", "tables"); !strings.Contains(out, "fairway-policy") || !strings.Contains(out, "fairway-lock\n") || strings.Count(out, "fairway") != 2 {
		l.Errorf("of ours there are more tables than that of policies and the lock:\n%s", out)
	}
	if os.Getenv("FAIRWAY_POLICY_WALK") != "" { // make test-policy
		l.followPolicies()
	}
	l.testAlone()
	l.run("down")
	l.gone()
}

// followPolicies runs the commands of docs/networkpolicy.md.
func (l *lab) followPolicies() {
	text, err := os.ReadFile("../../docs/networkpolicy.md")
	if err != nil {
		l.Fatal(err)
	}
	w := &policyWalk{lab: l, bin: l.TempDir()}
	if err := os.Symlink(built.lab, filepath.Join(w.bin, "kubectl")); err != nil {
		l.Fatal(err)
	}
	blocks := shBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 7 || strings.Count(string(text), "```sh\n") != len(blocks) {
		l.Fatalf("%d blocks of commands have a name", len(blocks))
	}
	for _, b := range blocks {
		w.follow(b[1], b[2])
	}
}

// A policyWalk runs the commands of a document.
type policyWalk struct {
	*lab
	bin string // directory with kubectl
}

// follow runs a block. If its lines have remarks, it runs the block line by line.
func (w *policyWalk) follow(name, commands string) {
	w.Helper()
	var script strings.Builder
	flush := func() {
		if out, err := w.shell(script.String()); err != nil {
			w.Fatalf("%s: %v\n%s\n%s", name, err, script.String(), out)
		}
		script.Reset()
	}
	for line := range strings.Lines(commands) {
		command, remark, _ := strings.Cut(strings.TrimRight(line, "\n"), "  # ")
		if remark != "allowed" && remark != "denied" {
			script.WriteString(line)
			continue
		}
		flush()
		w.becomes(name, command, remark == "allowed")
	}
	flush()
}

// becomes waits until a command succeeds, or fails, because policies and names take a moment.
func (w *policyWalk) becomes(name, command string, succeeds bool) {
	w.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out, err := w.shell(command)
		if (err == nil) == succeeds {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("%s: %s: %v, want success %v\n%s", name, command, err, succeeds, out)
		}
	}
}

func (w *policyWalk) shell(script string) (string, error) {
	cmd := exec.CommandContext(w.Context(), "bash", "-euc", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(w.dir(), "kubeconfig"), "PATH="+w.bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
