//go:build moves

package cluster_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairway-net/fairway/lab/fabric"
)

// localManifest is a second Service for the pods of routerManifest, with externalTrafficPolicy Local.
const localManifest = `
apiVersion: v1
kind: Service
metadata: {name: local}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  selector: {app: web}
  ports: [{port: 80}]
`

// An outsideRequest is a request of the client outside: its start, its duration and its error.
type outsideRequest struct {
	at   time.Time
	took time.Duration
	err  error
}

// An outsider is a client outside that makes a connection and a request at regular intervals. Each has its own port,
// and does not wait for earlier requests.
type outsider struct {
	stop chan struct{}
	all  sync.WaitGroup
	mu   sync.Mutex
	done []outsideRequest
}

func (l *lab) outsider(vip string, every time.Duration) *outsider {
	o := &outsider{stop: make(chan struct{})}
	f := fabric.Fabric{Dir: filepath.Join(l.dir(), "net")}
	o.all.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-o.stop:
				return
			case <-tick.C:
			}
			o.all.Go(func() {
				r := outsideRequest{at: time.Now()}
				_, r.err = request(f, net.JoinHostPort(vip, "80"))
				r.took = time.Since(r.at)
				o.mu.Lock()
				o.done = append(o.done, r)
				o.mu.Unlock()
			})
		}
	})
	return o
}

// end stops the requests, and returns them in the order of their start.
func (o *outsider) end() []outsideRequest {
	close(o.stop)
	o.all.Wait()
	slices.SortFunc(o.done, func(a, b outsideRequest) int { return a.at.Compare(b.at) })
	return o.done
}

// slow is the shortest duration of a request with a lost first packet, because TCP repeats the packet after a second.
const slow = 900 * time.Millisecond

// vips waits until a client outside gets an answer from each Service, and returns their addresses.
func (l *lab) vips(services ...string) (all []string) {
	l.Helper()
	for _, s := range services {
		vip := l.eventually(".", "kubectl", "get", "service", s, "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}")
		l.eventually("It works!", "client", "--", "curl", "-sS", "-m", "5", "http://"+vip)
		all = append(all, vip)
	}
	return all
}

func loadavg() string {
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	return first
}

// TestReplaced replaces all speakers and then all agents, one after the other. Meanwhile a client outside sends
// requests to addresses with both policies. No request may fail or wait for a repeated packet.
func TestReplaced(t *testing.T) {
	for _, way := range []string{"l2", "bgp", "bgp-graceful-restart"} {
		t.Run(way, func(t *testing.T) {
			l := newLab(t)
			balancer, restarts, _ := strings.Cut(way, "-")
			l.run(l.upArgs("--nodes", "3", "--load-balancer", balancer)...)
			l.input(routerManifest+"---"+localManifest, "kubectl", "apply", "-f", "-")
			l.run("kubectl", "rollout", "status", "daemonset/web", "--timeout=120s")
			vips := l.vips("web", "local")
			if restarts != "" { // without it, an ending speaker withdraws its routes, and the router selects new next hops for open connections
				peer := l.run("kubectl", "-n", "metallb-system", "get", "bgppeer", "router", "-o", "json")
				l.input(strings.Replace(peer, `"spec": {`, `"spec": {"enableGracefulRestart": true,`, 1), "kubectl", "replace", "--force", "-f", "-")
			}
			if balancer == "bgp" {
				l.within(2*time.Minute, "3 next hops", "router", "--", "sh", "-c", `sleep 3; echo "$(ip route show `+vips[0]+` | grep -c nexthop) next hops"`)
			}
			for _, program := range []string{"fairway-speaker", "fairway-agent"} {
				l.replaced(program, vips)
			}
		})
	}
}

func (l *lab) replaced(program string, vips []string) {
	l.Helper()
	var asking []*outsider
	for _, vip := range vips {
		asking = append(asking, l.outsider(vip, 20*time.Millisecond))
	}
	for range 2 {
		l.run("kubectl", "-n", "kube-system", "rollout", "restart", "daemonset/"+program)
		l.run("kubectl", "-n", "kube-system", "rollout", "status", "daemonset/"+program, "--timeout=180s")
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
	}
	for i, o := range asking {
		var failed, late []string
		all := o.end()
		for _, r := range all {
			switch text := r.at.Format("05.000 "); {
			case r.err != nil:
				failed = append(failed, text+r.err.Error())
			case r.took >= slow:
				late = append(late, text+r.took.Round(time.Millisecond).String())
			}
		}
		l.Logf("%s replaced twice on all nodes: %d requests to %s, %d failed, %d waited for a packet to be sent again (load %s)", program, len(all), []string{"Cluster", "Local"}[i], len(failed), len(late), loadavg())
		if len(failed) > 0 {
			l.Errorf("%s: failed: %s; late: %s", program, strings.Join(failed, ", "), strings.Join(late, ", "))
		}
	}
}
