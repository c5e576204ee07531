//go:build moves

package cluster_test

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTwoNodes has two nodes, and a Lease as the third vote. It cuts off the node that owns the address of a Service,
// once while this node holds the Lease and once while the other node holds it. The other node then takes the address,
// and a client outside reaches it again. The log and docs/reliability.md have the measured times.
func TestTwoNodes(t *testing.T) {
	l := newLab(t)
	l.run(l.upArgs("--nodes", "2", "--load-balancer", "l2")...)
	l.input(routerManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "rollout", "status", "daemonset/web", "--timeout=120s")
	vip := l.eventually("192.168.49.2", "kubectl", "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
	l.eventually(`"@lease","node-1","node-2"`, "kubectl", "-n", "metallb-system", "get", "configmap", "fairway-speaker-voters", "-o", "jsonpath={.data.voters}")
	l.eventually("node-", l.holder()...)
	l.eventually("It works!", "client", "--", "curl", "-sS", "-m", "5", "http://"+vip)
	owner := strings.TrimSuffix(strings.TrimPrefix(l.eventually("only node-", l.owner()...), "only "), ".")
	other := map[string]string{"node-1": "node-2", "node-2": "node-1"}[owner]
	if other == "" {
		t.Fatalf("the owner is %q", owner)
	}
	if l.run(l.holder()...) != owner { // the node holds the Lease after the other node was away
		l.run("fault", other, "link-down")
		l.eventually(owner, l.holder()...)
		l.run("fault", other, "heal")
		l.eventually("this node takes its addresses back", "kubectl", "-n", "kube-system", "logs", "-l", "app.kubernetes.io/name=fairway-speaker", "--tail=-1")
	}
	for _, has := range []string{"the owner", "the other one"} {
		l.within(time.Minute, "only "+owner+".", l.owner()...) // only one node may report the address, although the peers keep a dead node's status for a while
		answers := l.asking(vip)
		l.run("fault", owner, "link-down")
		l.eventually(other, l.holder()...)
		l.within(time.Minute, "only "+other+".", l.owner()...)
		l.eventually("It works!", "client", "--", "curl", "-sS", "-m", "5", "http://"+vip)
		t.Logf("%s had the Lease: without an answer for %v", has, answers().Round(10*time.Millisecond))
		l.run("fault", owner, "heal")
	}
}

// holder is the command that prints the holder of the Lease, and owner prints the owner of the address.
func (l *lab) holder() []string {
	return []string{"kubectl", "-n", "metallb-system", "get", "lease", "fairway-speaker-vote", "-o", "jsonpath={.spec.holderIdentity}"}
}

func (l *lab) owner() []string {
	return []string{"kubectl", "-n", "metallb-system", "get", "servicel2statuses", "-o", "jsonpath=only {.items[*].status.node}."}
}

// asking sends requests to an address from outside in a loop. stop ends the loop and returns the longest time between
// two answers.
func (l *lab) asking(addr string) (stop func() time.Duration) {
	l.Helper()
	more := filepath.Join(l.TempDir(), "more")
	if err := os.WriteFile(more, nil, 0o600); err != nil {
		l.Fatal(err)
	}
	cmd := l.cmd("client", "--", "sh", "-c", "while [ -e "+more+" ]; do curl -s -o /dev/null -m 0.3 http://"+addr+"/ && date +%s.%N; done")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		l.Fatal(err)
	}
	longest, first := make(chan time.Duration, 1), make(chan struct{})
	go func() {
		var gap, last float64
		for lines := bufio.NewScanner(out); lines.Scan(); {
			at, err := strconv.ParseFloat(strings.TrimSpace(lines.Text()), 64)
			if err != nil {
				continue
			}
			if last == 0 {
				close(first)
			} else {
				gap = max(gap, at-last)
			}
			last = at
		}
		longest <- time.Duration(gap * float64(time.Second))
	}()
	select {
	case <-first:
	case <-time.After(time.Minute):
		l.Fatal("no answer before the fault")
	}
	return func() time.Duration {
		_ = os.Remove(more)
		gap := <-longest
		_ = cmd.Wait()
		return gap
	}
}
