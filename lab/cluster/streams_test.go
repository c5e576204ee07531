package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// testStreams runs the kubectl commands with long connections through the kubelet: cp, exec, attach, port-forward.
func (l *lab) testStreams() {
	dir := l.TempDir()
	there, back := filepath.Join(dir, "there"), filepath.Join(dir, "back")
	if err := os.WriteFile(there, []byte("a file\n"), 0o600); err != nil {
		l.Fatal(err)
	}
	l.run("kubectl", "cp", there, "box:/tmp/copied")
	if out := l.input("typed\n", "kubectl", "exec", "-i", "box", "--", "sh", "-c", "cat /tmp/copied -"); out != "a file\ntyped\n" {
		l.Errorf("cat of what was copied and of what was typed: %q", out)
	}
	l.run("kubectl", "cp", "box:/tmp/copied", back)
	if text, err := os.ReadFile(back); err != nil || string(text) != "a file\n" {
		l.Errorf("copied back: %q, %v", text, err)
	}
	l.input(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"echo"},"spec":{"restartPolicy":"Never","containers":[
		{"name":"c","image":"busybox","imagePullPolicy":"IfNotPresent","command":["cat"],"stdin":true,"stdinOnce":true}]}}`, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/echo", "--timeout=60s")
	l.input("attached\n", "kubectl", "attach", "-i", "echo")
	l.eventually("attached\n", "kubectl", "logs", "echo")
	l.forwarded()
}

// forwarded reaches the Service web through a port of this machine.
func (l *lab) forwarded() {
	port := strconv.Itoa(freePort(l.T))
	forward := l.cmd("kubectl", "port-forward", "service/web", port+":80")
	if err := forward.Start(); err != nil {
		l.Fatal(err)
	}
	defer func() {
		_ = forward.Process.Signal(unix.SIGTERM)
		_ = forward.Wait()
	}()
	var out []byte
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		out, err = exec.Command("curl", "-sS", "-m", "5", "http://127.0.0.1:"+port+"/").CombinedOutput()
		if strings.Contains(string(out), "It works!") {
			return
		}
	}
	l.Errorf("through the forwarded port: %q, %v", out, err)
}
