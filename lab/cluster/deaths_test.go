//go:build moves

package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/lab/fabric"
)

// TestDeaths: a node loses its link, 20 times (DEATHS). It is the owner of an address, or a node to which a router
// sends connections, watched by BFD. In half of the runs the API server is stopped. The result for docs/reliability.md
// is the time from the link's loss to the last request without an answer within 0.9 s.
func TestDeaths(t *testing.T) {
	deaths := deathsOr(20)
	for way, more := range map[string][]string{"l2": nil, "bgp": {"--pod-network", "bgp"}} {
		t.Run(way, func(t *testing.T) { deathsBy(newLab(t), way, deaths, more) })
	}
}

// deathsOr returns the number of deaths in DEATHS, or n.
func deathsOr(n int) int {
	if deaths, err := strconv.Atoi(os.Getenv("DEATHS")); err == nil {
		return deaths
	}
	return n
}

func deathsBy(l *lab, way string, deaths int, more []string) {
	v := l.victim(way, more)
	f := fabric.Fabric{Dir: filepath.Join(l.dir(), "net")}
	die := func() error { return f.SetLink(v.node, false) }
	for _, api := range []string{"well", "stopped"} {
		if api == "stopped" {
			l.run("fault", "control-plane", "pause")
		}
		var all []time.Duration
		for range deaths / 2 {
			l.within(2*time.Minute, v.want, v.ready...)
			all = append(all, l.outage(v.vip, die))
			if err := f.SetLink(v.node, true); err != nil {
				l.Fatal(err)
			}
		}
		if api == "stopped" {
			l.run("fault", "control-plane", "heal")
		}
		l.logOutages(fmt.Sprintf("%s, API server %s: %d deaths of %s", way, api, len(all), v.node), all)
	}
}

// TestSpeakersKilled: the speaker of a node is killed, 20 times (DEATHS), and the kubelet restarts it. The node is
// chosen as in TestDeaths, and its other processes continue.
func TestSpeakersKilled(t *testing.T) {
	for _, way := range []string{"l2", "bgp"} {
		t.Run(way, func(t *testing.T) {
			l := newLab(t)
			v := l.victim(way, nil)
			number := strings.TrimPrefix(v.node, "node-")
			own := []string{"kubectl", "-n", "kube-system", "get", "pod", "-l", "app.kubernetes.io/name=fairway-speaker", "--field-selector", "spec.nodeName=" + v.node}
			var all []time.Duration
			for range deathsOr(20) {
				l.within(2*time.Minute, v.want, v.ready...)
				pid := strings.TrimSpace(l.run("node", number, "--", "pgrep", "-f", "^fairway speaker"))
				all = append(all, l.outage(v.vip, func() error {
					_, err := l.try("node", number, "--", "kill", "-9", pid)
					return err
				}))
				l.eventually("restarts 1.", append(own, "-o", "jsonpath=restarts {.items[*].status.containerStatuses[0].restartCount}.")...)
				// Delete the pod, because the kubelet waits longer each time it restarts a container.
				l.run(append([]string{"kubectl", "-n", "kube-system", "delete"}, own[4:]...)...)
				l.run("kubectl", "-n", "kube-system", "rollout", "status", "daemonset/fairway-speaker", "--timeout=120s")
			}
			l.logOutages(fmt.Sprintf("%s: %d times the speaker of %s killed", way, len(all), v.node), all)
		})
	}
}

// A victim is the node that the test breaks, with the checks for a healthy state before.
type victim struct {
	node, vip, want string
	ready           []string
}

// victim makes a lab of three nodes with a Service. It returns the node that owns the Service's address, or a node to
// which the router sends connections.
func (l *lab) victim(way string, more []string) victim {
	l.Helper()
	l.run(l.upArgs(append([]string{"--nodes", "3", "--load-balancer", way}, more...)...)...)
	l.input(routerManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "rollout", "status", "daemonset/web", "--timeout=120s")
	v := victim{node: "node-3", vip: l.vips("web")[0], want: "3 next hops"}
	v.ready = []string{"router", "--", "sh", "-c", `echo "$(ip route show ` + v.vip + ` | grep -c nexthop) next hops"; sleep 1`}
	if way == "l2" {
		v.node = strings.TrimSuffix(strings.TrimPrefix(l.eventually("only node-", l.owner()...), "only "), ".")
		v.want, v.ready = v.vip, []string{"node", strings.TrimPrefix(v.node, "node-"), "--", "nft", "list", "set", "netdev", "fairway-fence", "held4"}
	}
	return v
}

func (l *lab) logOutages(what string, all []time.Duration) {
	l.Helper()
	slices.Sort(all)
	l.Logf("%s, without an answer for: min %v, median %v, max %v (load %s)", what, all[0], all[len(all)/2], all[len(all)-1], loadavg())
}

// outage runs a fault while a client outside sends requests. It returns the time from the fault to the last request
// without an answer.
func (l *lab) outage(vip string, fault func() error) time.Duration {
	l.Helper()
	o := l.outsider(vip, 10*time.Millisecond)
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	died := time.Now()
	if err := fault(); err != nil {
		l.Fatal(err)
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	all := o.end()
	last, late := died, ""
	for _, r := range all {
		if r.err == nil && r.took < slow {
			continue
		}
		if last = r.at; r.at.Sub(died) > time.Second {
			late += fmt.Sprintf("; %v after it: took %v: %v", r.at.Sub(died), r.took, r.err)
		}
	}
	if late != "" {
		l.Logf("requests without an answer for 0.9 s%s", late)
		for _, n := range []string{"1", "2", "3"} {
			out, _ := l.try("node", n, "--", "conntrack", "-L", "-p", "tcp", "-d", vip, "--state", "SYN_SENT")
			l.Logf("node-%s: %s", n, out)
		}
	}
	if n := len(all); n < 100 || all[n-1].at.Sub(last) < time.Second {
		l.Errorf("of %d requests the last one without an answer is sent %v after the death", n, last.Sub(died))
	}
	return last.Sub(died).Round(time.Millisecond)
}
