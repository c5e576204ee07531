package cluster_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/flow/top"
)

// testTop: fairway top counts the connections that a client of the Service default/web holds, at the endpoint that has
// them, and those that the client makes while it looks. It runs in the cluster of TestPathNode.
func testTop(t *testing.T, l *lab, endpoint string) {
	const held, made = 5, 7
	fairway := func(args ...string) *exec.Cmd {
		args = append([]string{"top", "-n", "default", "--filter", "default/web", "-o", "json", "--kubeconfig", strings.TrimSpace(l.run("kubeconfig"))}, args...)
		return exec.CommandContext(t.Context(), built.fairway, args...)
	}
	once := func(args ...string) (f top.Frame) {
		out, err := fairway(append(args, "--once")...).Output()
		if err == nil {
			err = json.Unmarshal(out, &f)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return f
	}
	// httpd waits for the request of each connection.
	holding := l.cmd("kubectl", "exec", "client", "--", "sh", "-c", fmt.Sprintf("for i in $(seq %d); do (sleep 60 | nc 10.96.7.7 80) & done; wait", held))
	if err := holding.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = holding.Process.Kill()
		_ = holding.Wait()
	}()
	var f top.Frame
	for range 20 {
		if f = once(); len(f.Rows) == 1 && f.Rows[0].Connections == held {
			break
		}
	}
	if len(f.Rows) != 1 || f.Rows[0].Service != "web" || f.Rows[0].Connections != held || f.Nodes != 2 || f.Of != 2 {
		t.Errorf("frame %+v, want %d connections to web", f, held)
	}
	if f = once("service/web"); len(f.Rows) != 1 || f.Rows[0].Endpoint.String() != endpoint || f.Rows[0].Connections != held {
		t.Errorf("endpoints %+v, want %d connections to %s", f, held, endpoint)
	}
	looking := fairway("--node", "node-1")
	out, err := looking.StdoutPipe()
	if err == nil {
		err = looking.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = looking.Process.Kill()
		_ = looking.Wait()
	}()
	frames := json.NewDecoder(out)
	sum := func(want uint64) uint64 { return newConnections(t, frames, want) }
	sum(0)
	l.run("kubectl", "exec", "client", "--", "sh", "-c", fmt.Sprintf("for i in $(seq %d); do wget -q -O /dev/null http://10.96.7.7/ || true; done", made))
	if got := sum(made); got != made {
		t.Errorf("%d new connections, want %d", got, made)
	}
}

// newConnections reads frames until the Service has had that many new connections, and returns their number.
func newConnections(t *testing.T, frames *json.Decoder, want uint64) (got uint64) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		var f top.Frame
		if err := frames.Decode(&f); err != nil {
			t.Fatal(err)
		}
		if len(f.Rows) == 1 && f.Rows[0].New != nil {
			if got = *f.Rows[0].New; got >= want {
				return got
			}
		}
	}
	return got
}
