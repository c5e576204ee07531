//go:build moves

package cluster_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSlowRouter: BIRD accepts no new session for 50 s, during a rollout of speakers that wait for 90 s. The rollout
// waits at the first speaker, so the routes of the other speakers stay. It reports the reason, and continues when the
// router accepts sessions again. No request fails. If the router never accepts a session, each node delays the rollout
// by the time in --ready-within.
func TestSlowRouter(t *testing.T) {
	l := newLab(t)
	l.run(l.upArgs("--nodes", "3", "--load-balancer", "bgp")...)
	l.input(routerManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "rollout", "status", "daemonset/web", "--timeout=120s")
	vip := l.vips("web")[0]
	nextHops := []string{"router", "--", "sh", "-c", `echo "$(ip route show ` + vip + ` | grep -c nexthop) next hops"`}
	l.within(2*time.Minute, "3 next hops", nextHops...)
	l.readyWithin("--ready-within=90s", 3*time.Minute)
	l.within(time.Minute, "3 next hops", nextHops...)

	o := l.outsider(vip, 20*time.Millisecond)
	l.noNewSessions()
	began := time.Now()
	l.run("kubectl", "-n", "kube-system", "rollout", "restart", "daemonset/fairway-speaker")
	for end := began.Add(50 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if n := l.run("kubectl", "-n", "kube-system", "get", "daemonset", "fairway-speaker", "-o", "jsonpath={.status.updatedNumberScheduled}"); n != "" && n != "0" && n != "1" {
			t.Fatalf("after %v %s speakers are new, and the router has taken none", time.Since(began), n)
		}
	}
	if said := l.unready(); len(said) != 1 || !strings.HasPrefix(said[0], "the session with router is not up") {
		t.Errorf("speakers that are not ready say %q", said)
	}
	l.run("router", "--", "nft", "delete", "table", "ip", "slow")
	again := time.Now()
	l.run("kubectl", "-n", "kube-system", "rollout", "status", "daemonset/fairway-speaker", "--timeout=180s")
	ended := time.Since(again)
	l.within(time.Minute, "3 next hops", nextHops...)
	var failed []string
	all := o.end()
	for _, r := range all {
		if r.err != nil {
			failed = append(failed, r.at.Sub(began).Round(time.Millisecond).String()+" "+r.err.Error())
		}
	}
	t.Logf("a router that takes no session for 50 s: the rollout of three ends %v after that; %d requests, %d failed (load %s)", ended.Round(time.Second), len(all), len(failed), loadavg())
	if len(failed) > 0 {
		t.Errorf("failed: %s", strings.Join(failed, ", "))
	}

	l.noNewSessions()
	began = time.Now()
	l.readyWithin("--ready-within=20s", 4*time.Minute)
	took := time.Since(began)
	t.Logf("a router that takes no session, --ready-within=20s: the rollout of three takes %v (load %s)", took.Round(time.Second), loadavg())
	if took < 55*time.Second {
		t.Errorf("the rollout did not wait for the router: %v", took)
	}
}

// unready returns the reports of the speakers that are not ready.
func (l *lab) unready() (all []string) {
	l.Helper()
	for _, node := range []string{"1", "2", "3"} {
		if text := strings.TrimSpace(l.run("node", node, "--", "curl", "-sS", "http://127.0.0.1:10281/readyz")); text != "ok" {
			all = append(all, text)
		}
	}
	return all
}

// noNewSessions lets the router drop the first packet of each new session. Existing sessions continue.
func (l *lab) noNewSessions() {
	l.Helper()
	l.run("router", "--", "nft", "add table ip slow; add chain ip slow in { type filter hook input priority 0; }; add rule ip slow in tcp dport 179 tcp flags syn / syn,ack drop; add chain ip slow out { type filter hook output priority 0; }; add rule ip slow out tcp dport 179 tcp flags syn / syn,ack drop")
}

// readyWithin replaces the speakers by speakers with another option, and waits for the rollout.
func (l *lab) readyWithin(option string, bound time.Duration) {
	l.Helper()
	var command []string
	text := l.run("kubectl", "-n", "kube-system", "get", "daemonset", "fairway-speaker", "-o", "jsonpath={.spec.template.spec.containers[0].command}")
	if err := json.Unmarshal([]byte(text), &command); err != nil {
		l.Fatalf("%v: %s", err, text)
	}
	command = slices.DeleteFunc(command, func(arg string) bool { return strings.HasPrefix(arg, "--ready-within") })
	patch, err := json.Marshal([]any{map[string]any{"op": "replace", "path": "/spec/template/spec/containers/0/command", "value": append(command, option)}})
	if err != nil {
		l.Fatal(err)
	}
	l.run("kubectl", "-n", "kube-system", "patch", "daemonset", "fairway-speaker", "--type=json", "-p", string(patch))
	l.run("kubectl", "-n", "kube-system", "rollout", "status", "daemonset/fairway-speaker", "--timeout="+bound.String())
}
