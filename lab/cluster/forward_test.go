package cluster_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// deskManifest is a deployment whose pods go on while they are being deleted, as those of careful users do.
const deskManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: desk}
spec:
  replicas: 2
  selector: {matchLabels: {app: desk}}
  template:
    metadata: {labels: {app: desk}}
    spec:
      terminationGracePeriodSeconds: 3
      containers: [{name: web, image: httpd, imagePullPolicy: IfNotPresent, lifecycle: {preStop: {sleep: {seconds: 2}}}}]
---
apiVersion: v1
kind: Service
metadata: {name: desk}
spec:
  selector: {app: desk}
  ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]
`

// testForward holds the promises of fairway forward: it follows pods without a failed request, without root too, and
// leaves nothing in the hosts file, also after kill -9.
func (l *lab) testForward() {
	l.input(deskManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "rollout", "status", "deployment/desk", "--timeout=60s")
	hosts := filepath.Join(l.TempDir(), "hosts")
	const before = "127.0.0.1 localhost\n"
	if err := os.WriteFile(hosts, []byte(before), 0o600); err != nil {
		l.Fatal(err)
	}
	first := l.forward(exec.Command(built.fairway, "forward", "--hosts-file", hosts, "desk"))
	first.until("default/desk:53  is not forwarded: the API server carries no UDP")
	line := first.until("default/desk:80  is at desk:80 (")
	_, rest, _ := strings.Cut(line, "(")
	address, _, _ := strings.Cut(rest, ")")
	if text, _ := os.ReadFile(hosts); !strings.Contains(string(text), address+"\tdesk desk.default desk.default.svc desk.default.svc.cluster.local\n") {
		l.Errorf("the hosts file is\n%s", text)
	}
	second := l.forward(exec.Command("setpriv", "--bounding-set=-all", "--inh-caps=-all", built.fairway, "forward", "--ports", "svc/desk:80"))
	_, rest, _ = strings.Cut(second.until("default/desk:80  is at 127.0.0.1:"), "127.0.0.1:")
	port, _, _ := strings.Cut(rest, ",")
	kubectl := l.forward(exec.Command(built.lab, "--name", l.name, "kubectl", "port-forward", "service/desk", ":80"))
	_, rest, _ = strings.Cut(kubectl.until("Forwarding from 127.0.0.1:"), "127.0.0.1:")
	ofKubectl, _, _ := strings.Cut(rest, " ")
	l.whilePodsAreReplaced("http://"+address+"/", "http://127.0.0.1:"+port+"/")
	// For comparison: kubectl stays with one pod, and ends with it. A rollout is complete while old pods still end.
	kubectls := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for end := time.Now().Add(time.Minute); askWeb(kubectls, "http://127.0.0.1:"+ofKubectl+"/") == nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			l.Fatal("kubectl port-forward answers although its pod is gone")
		}
	}

	first.kill()
	if text, _ := os.ReadFile(hosts); !strings.HasPrefix(string(text), before) {
		l.Errorf("after kill -9 the hosts file is\n%s", text)
	}
	third := l.forward(exec.Command(built.fairway, "forward", "--hosts-file", hosts, "desk:80"))
	if line := third.until("default/desk:80  is at desk:80 ("); !strings.Contains(line, address) {
		l.Errorf("the Service was at %s, and now %s", address, line)
	}
	third.end()
	second.end()
	if text, _ := os.ReadFile(hosts); string(text) != before {
		l.Errorf("at the end the hosts file is\n%s", text)
	}
	l.run("kubectl", "delete", "service/desk", "deployment/desk", "--wait=false")
}

// requests is how many requests must be answered while pods are replaced.
const requests = 1000

// whilePodsAreReplaced asks the URLs in turn while all pods of the deployment desk are replaced twice.
func (l *lab) whilePodsAreReplaced(urls ...string) {
	l.Helper()
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var asked, failed atomic.Int64
	var replaced atomic.Bool
	var asking sync.WaitGroup
	asking.Go(func() {
		for n := 0; !replaced.Load() || n < requests; n++ {
			asked.Add(1)
			if err := askWeb(client, urls[n%len(urls)]); err != nil && failed.Add(1) < 5 {
				l.Errorf("request %d: %v", n, err)
			}
		}
	})
	for range 2 {
		l.run("kubectl", "rollout", "restart", "deployment/desk")
		l.run("kubectl", "rollout", "status", "deployment/desk", "--timeout=120s")
	}
	replaced.Store(true)
	asking.Wait()
	l.Logf("%d requests while all pods were replaced twice, %d failed", asked.Load(), failed.Load())
}

func askWeb(client *http.Client, url string) error {
	r, err := client.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err == nil && !strings.Contains(string(text), "It works!") {
		err = fmt.Errorf("%s: %.80q", r.Status, text)
	}
	return err
}

// A forwarding is a running fairway forward.
type forwarding struct {
	*lab
	cmd   *exec.Cmd
	lines chan string
	seen  []string
}

func (l *lab) forward(cmd *exec.Cmd) *forwarding {
	l.Helper()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(l.dir(), "kubeconfig"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		l.Fatal(err)
	}
	f := &forwarding{lab: l, cmd: cmd, lines: make(chan string, 1000)}
	go func() {
		defer close(f.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			f.lines <- s.Text()
		}
	}()
	l.Cleanup(f.kill)
	return f
}

// until returns the first line that contains a text.
func (f *forwarding) until(text string) string {
	f.Helper()
	for _, line := range f.seen {
		if strings.Contains(line, text) {
			return line
		}
	}
	late := time.After(30 * time.Second)
	for {
		select {
		case line, ok := <-f.lines:
			if f.seen = append(f.seen, line); strings.Contains(line, text) {
				return line
			}
			if !ok {
				f.Fatalf("fairway forward ended without %q:\n%s", text, strings.Join(f.seen, "\n"))
			}
		case <-late:
			f.Fatalf("fairway forward never said %q:\n%s", text, strings.Join(f.seen, "\n"))
		}
	}
}

func (f *forwarding) kill() {
	_ = f.cmd.Process.Kill()
	_ = f.cmd.Wait()
}

// end ends it as Ctrl-C does.
func (f *forwarding) end() {
	f.Helper()
	_ = f.cmd.Process.Signal(unix.SIGINT)
	for line := range f.lines {
		f.seen = append(f.seen, line)
	}
	if err := f.cmd.Wait(); err != nil {
		f.Errorf("fairway forward ended with %v:\n%s", err, strings.Join(f.seen, "\n"))
	}
}
