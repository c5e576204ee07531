package cluster_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"time"
)

// testPublished reaches the Service web at a port of this machine's loopback. It also checks the lab's output for
// programs.
func (l *lab) testPublished(port int) {
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	client := http.Client{Timeout: 5 * time.Second}
	var last error
	for until := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		resp, err := client.Get(url)
		if err == nil {
			_, last = io.Copy(io.Discard, resp.Body)
			if resp.Body.Close(); resp.StatusCode != http.StatusOK {
				last = errors.New(resp.Status)
			}
			if last == nil {
				break
			}
		} else {
			last = err
		}
		if time.Now().After(until) {
			l.Fatalf("%s: %v", url, last)
		}
	}
	var status struct {
		State     string
		Published []string
		Processes []struct{ Name, State string }
		Nodes     []struct {
			Ready   bool
			Proxies []struct{ Mode string }
		}
	}
	l.json(&status, "status", "-o", "json")
	want := fmt.Sprintf("{up [%d:30080] [{control-plane runs} {node-1 runs} {node-2 runs}] [{true [{nftables}]} {true [{nftables}]}]}", port)
	if have := fmt.Sprint(status); have != want {
		l.Errorf("the status is %s, want %s", have, want)
	}
	var list struct {
		Labs []struct{ Name, State string }
	}
	l.json(&list, "list", "-o", "json")
	if have := fmt.Sprint(list); !strings.Contains(have, "{"+l.name+" up}") {
		l.Errorf("the list is %s", have)
	}
}

// json decodes the output of a command.
func (l *lab) json(into any, args ...string) {
	l.Helper()
	out, err := l.cmd(args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		l.Errorf("fairway-lab %q: %s", args, exit.Stderr)
	}
	if err := json.Unmarshal(out, into); err != nil {
		l.Fatalf("fairway-lab %q: %v\n%s", args, err, out)
	}
}
