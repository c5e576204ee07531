package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/testing/docpage"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// patient is how long the tests wait for an event that must happen.
const patient = 60 * time.Second

// kubeconfigOf writes a kubeconfig of an API server.
func kubeconfigOf(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"` + server + `","insecure-skip-tls-verify":true}}],` +
		`"users":[{"name":"u","user":{}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDeadAPIServer: a command says in one line that the API server does not answer, and why; no library adds lines.
func TestDeadAPIServer(t *testing.T) {
	kubeconfig := kubeconfigOf(t, "https://127.0.0.1:1")
	for _, line := range []string{
		"status --cluster", "status --load-balancers", "drain node-1", "install --dry-run", "upgrade", "rollback", "uninstall",
		"explain default/web --hostname-override node-1 --timeout 300ms", "policy default/web --timeout 300ms",
	} {
		cmd := exec.Command(os.Args[0]) // what libraries write, they write to the process's own stderr
		args := `["` + strings.ReplaceAll(line+" --kubeconfig "+kubeconfig, " ", `","`) + `"]`
		cmd.Env = append(os.Environ(), programArgs+"="+args)
		out, err := cmd.CombinedOutput()
		what, hint, _ := strings.Cut(strings.TrimSuffix(string(out), "\n"), "\n")
		if err == nil || !strings.HasPrefix(what, "error: ") || !strings.HasSuffix(what, "dial tcp 127.0.0.1:1: connect: connection refused") ||
			strings.Contains(what, `Get "`) || hint != "" && (!strings.HasPrefix(hint, "hint: ") || strings.Contains(hint, "\n")) {
			t.Errorf("fairway %s: %v:\n%s", line, err, out)
		}
	}
}

// TestStatusWithoutAPIServer: docs/troubleshooting.md shows what an agent says of itself that has not reached the API
// server yet.
func TestStatusWithoutAPIServer(t *testing.T) {
	node, log := testnet.New(t).Node("node-1"), &testnet.Log{}
	agent := exec.Command(os.Args[0])
	agent.Env = append(os.Environ(), programArgs+`=["agent", "--hostname-override", "node-1", "--kubeconfig", "`+kubeconfigOf(t, "https://172.18.0.200:6443")+
		`", "--pod-network", "routes", "--cluster-cidr", "10.244.0.0/16", "--cni-bin-dir", "`+t.TempDir()+`", "--cni-conf-dir", "`+t.TempDir()+`"]`)
	agent.Stdout, agent.Stderr = log, log
	agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := node.Do(agent.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Process.Kill(); _ = agent.Wait() })
	if err := log.Await("no route to host", patient); err != nil {
		t.Fatalf("%v:\n%s", err, log)
	}
	var out string
	for end := time.Now().Add(patient); !strings.Contains(out, "endpointslices, nodes, servicecidrs, services: ") && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := node.Do(func() error { _, out, _ = fairway(t, "status"); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	docpage.Check(t, "../../docs/troubleshooting.md", "kubectl -n kube-system exec fairway-agent-rk226 -- fairway status", out)
}

// TestNoSuchNode: on a machine that is no node, nothing is decided for it.
func TestNoSuchNode(t *testing.T) {
	url, _ := apiServer(t, "external-local")
	for line, root := range map[string]bool{"explain default/web": false, "diff": true} {
		t.Run(line, func(t *testing.T) {
			if root {
				testnet.NeedRoot(t, "reads the kernel's rules")
			}
			code, out, errs := fairway(t, append(strings.Fields(line), "--hostname-override", "laptop", "--master", url)...)
			want := "error: there is no node \"laptop\"\nhint: name one with --node"
			if line == "diff" { // the kernel of this machine has nothing to compare
				want = "error: no fairway agent runs on this machine"
			}
			if code == 0 || out != "" || !strings.HasPrefix(errs, want) || strings.Count(errs, "\n") != 2 {
				t.Errorf("fairway %s: status %d: %s%s", line, code, out, errs)
			}
		})
	}
}

// TestArguments: who gives too few or too many is told how the command is written.
func TestArguments(t *testing.T) {
	for line, want := range map[string]string{
		"explain service default/web": "received 2\nhint: write fairway explain NAMESPACE/SERVICE | KIND/NAMESPACE/NAME\n",
		"policy":                      "received 0\nhint: write fairway policy NAMESPACE/POD\n",
		"dump all":                    "\nhint: fairway dump takes no arguments\n",
		"preflight":                   "unknown command \"preflight\"\nhint: did you mean fairway doctor?\n",
		"describe default/web":        "unknown command \"describe\"\nhint: did you mean fairway explain?\n",
	} {
		fails(t, want, strings.Fields(line)...)
	}
}
