//go:build moves

package cluster_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairway-net/fairway/lab/fabric"
)

// movesManifest is a Service with a pod on each of two nodes. The pods serve for some seconds after their termination
// starts.
const movesManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}]}}
      containers:
      - {name: web, image: httpd, imagePullPolicy: IfNotPresent, readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, externalTrafficPolicy: %s, selector: {app: web}, ports: [{port: 80}]}
`

// TestMoves: a client outside opens 20,000 connections to a Service and sends a request on each, while the Service's
// pods are replaced repeatedly. The test runs for each way to give an address, and for both policies. Under Local, each
// replacement ends the last pod of a node. The client uses the status's addresses in turn, with a delay of half a
// second. With ServiceLB they are the nodes' own addresses, and come and go with their pods. FAIRWAY_MOVES selects the
// ways (make bench-moves, ten minutes and more).
func TestMoves(t *testing.T) {
	for way := range strings.FieldsSeq(os.Getenv("FAIRWAY_MOVES")) {
		t.Run(way, func(t *testing.T) {
			l := newLab(t)
			args := []string{"--nodes", "2", "--load-balancer", way}
			if balancer, target, ok := strings.Cut(way, "-"); ok {
				args = []string{"--nodes", "2", "--load-balancer", balancer, "--edge-target", target}
			}
			l.run(l.upArgs(args...)...)
			for _, policy := range []string{"Cluster", "Local"} {
				l.input(fmt.Sprintf(movesManifest, policy), "kubectl", "apply", "-f", "-")
				l.run("kubectl", "rollout", "status", "deployment/web", "--timeout=120s")
				l.moves(policy)
			}
		})
	}
}

// moves opens the connections. It fails the test if a connection is refused or cut.
func (l *lab) moves(policy string) {
	l.Helper()
	addrs := l.addresses("web")
	l.eventually("It works!", "client", "--", "curl", "-sS", "-m", "5", "http://"+addrs()[0]+"/")
	const connections, beside = 20_000, 8
	var left, replaced atomic.Int32
	left.Store(connections)
	var mu sync.Mutex
	var failed []string
	var cut int // number of open connections that were cut
	var all sync.WaitGroup
	f := fabric.Fabric{Dir: filepath.Join(l.dir(), "net")}
	for range beside {
		all.Go(func() {
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				began, all := time.Now(), addrs()
				at := all[int(n)%len(all)]
				if opened, err := request(f, net.JoinHostPort(at, "80")); err != nil {
					mu.Lock()
					if opened {
						cut++
					}
					failed = append(failed, fmt.Sprintf("%s %s: %v", began.Format("05.000"), at, err))
					mu.Unlock()
				}
				time.Sleep(10 * time.Millisecond) // so that pods are replaced several times during the test
			}
		})
	}
	for left.Load() > 0 {
		l.run("kubectl", "rollout", "restart", "deployment/web")
		l.run("kubectl", "rollout", "status", "deployment/web", "--timeout=120s")
		replaced.Add(2)
	}
	all.Wait()
	load, _ := os.ReadFile("/proc/loadavg")
	l.Logf("%s: %d connections while %d pods were replaced, %d were not opened, %d were cut (load %.5s)", policy, connections, replaced.Load(), len(failed)-cut, cut, load)
	if len(failed) > 0 {
		l.Errorf("%s: %d of %d connections failed, the first: %s", policy, len(failed), connections, strings.Join(failed[:min(5, len(failed))], "\n"))
	}
}

// addresses follows the addresses in a Service's status, half a second late, as a client does that is told of changes.
func (l *lab) addresses(service string) func() []string {
	l.Helper()
	var mu sync.Mutex
	var now []string
	cmd := exec.CommandContext(l.Context(), built.lab, "--name", l.name, "kubectl", "get", "service", service, "--watch", "-o", `jsonpath={.status.loadBalancer.ingress[*].ip}{"\n"}`)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = cmd.Wait() }) // the command ends with the test
	first := make(chan struct{})
	tell := sync.OnceFunc(func() { close(first) })
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			all := strings.Fields(lines.Text())
			if len(all) == 0 {
				continue
			}
			time.AfterFunc(toldAfter, func() {
				mu.Lock()
				defer mu.Unlock()
				now = all
				tell()
			})
		}
	}()
	select {
	case <-first:
	case <-time.After(time.Minute):
		l.Fatalf("%s has no address", service)
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
}

// toldAfter is the delay after which clients learn of a status's addresses.
const toldAfter = 500 * time.Millisecond

// request opens a connection from the client outside, and gets a page.
func request(f fabric.Fabric, at string) (opened bool, err error) {
	err = visit(f, fabric.Client, func() error {
		c, err := net.DialTimeout("tcp", at, 10*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		opened = true
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := io.WriteString(c, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		page, err := io.ReadAll(c)
		if err == nil && !strings.Contains(string(page), "It works!") {
			err = errors.New("no page")
		}
		return err
	})
	return opened, err
}
