package cluster_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// ebpfPods are a Service with two servers, and a client.
const ebpfPods = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {clusterIP: 10.96.0.77, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {terminationGracePeriodSeconds: 0, containers: [{name: web, image: httpd, readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: default}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: sleep, image: busybox, command: [sleep, "3600"]}]}
`

// TestEBPF: in mode ebpf the programs choose the endpoints of a pod's connections, only in the cgroup of the node. They
// do so after a kill -9 of the agent, and the documented removal leaves none of them in the kernel.
func TestEBPF(t *testing.T) {
	beside(t, 1)
	u := newUndo(t)
	u.overlay("deploy/agent", "pod-network", "ebpf")
	u.shell(applied)
	u.input(ebpfPods, "kubectl", "apply", "-f", "-")
	u.run("kubectl", "rollout", "status", "deployment/web", "--timeout=60s")
	u.run("kubectl", "wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
	if out := u.agentLog(); strings.Contains(out, "connect time") || strings.Contains(out, "not ejected") {
		t.Errorf("the agent says: %s", out)
	}

	const connects = 20
	ask := func() {
		t.Helper()
		for range connects {
			u.run("kubectl", "exec", "client", "--", "wget", "-q", "-T", "2", "-O", "/dev/null", "http://10.96.0.77/")
		}
	}
	before := u.translated()
	ask()
	if got := u.translated() - before; got != connects {
		t.Errorf("%d of %d connections of a pod got their endpoint at connect time", got, connects)
	}
	programs := u.attached()
	if len(programs) != 5 {
		t.Errorf("%d programs are attached to the node's cgroup, want 5", len(programs))
	}

	u.run("node", "1", "--", "pkill", "-9", "-f", "^fairway agent")
	ask()
	u.eventually("restarts 1.", "kubectl", "-n", "kube-system", "get", "pod", "-l", "k8s-app=fairway-agent", "-o", "jsonpath=restarts {.items[*].status.containerStatuses[0].restartCount}.")
	u.shell(applied)
	before = u.translated()
	ask()
	if got := u.translated() - before; got != connects {
		t.Errorf("after a kill -9: %d of %d connections of a pod got their endpoint at connect time", got, connects)
	}

	u.ejectsDead()

	programs = u.attached()
	u.follow("removal") // the pods' interfaces stay, because the pods do
	if left := u.state()["bpf"]; left != u.before["bpf"] {
		t.Errorf("the bpffs has\n%s\nand had\n%s", left, u.before["bpf"])
	}
	if left := u.attached(); len(left) > 0 {
		t.Errorf("%d programs are still attached", len(left))
	}
	u.unloaded(programs)
}

// deadServer is a ready endpoint of the Service web that refuses all connections.
const deadServer = `
apiVersion: v1
kind: Pod
metadata: {name: dead, namespace: default, labels: {app: web}}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: sleep, image: busybox, command: [sleep, "3600"]}]}
`

// ejectsDead adds an endpoint that refuses. At most two connections of a pod fail by it, and the agent says that it is
// ejected.
func (u *undo) ejectsDead() {
	u.Helper()
	u.input(deadServer, "kubectl", "apply", "-f", "-")
	u.eventually(" : 3 slots", "kubectl", "-n", "kube-system", "exec", "daemonset/fairway-agent", "--", "fairway", "dump", "--service", "default/web", "--objects")
	out := u.run("kubectl", "exec", "client", "--", "sh", "-c", `for i in $(seq 40); do wget -q -T 2 -O /dev/null http://10.96.0.77/ 2>/dev/null || echo failed; done`)
	failed := strings.Count(out, "failed")
	u.Logf("%d of 40 connections failed", failed)
	if failed > 2 {
		u.Errorf("%d of 40 connections failed, although an endpoint that refuses is ejected", failed)
	}
	dump := u.run("kubectl", "-n", "kube-system", "exec", "daemonset/fairway-agent", "--", "fairway", "dump", "--service", "default/web", "--objects")
	if failed > 0 && !strings.Contains(dump, ": refused") {
		u.Errorf("no ejection in\n%s", dump)
	}
}

var translatedSockets = regexp.MustCompile(`(\d+) sockets translated`)

// translated returns the number of sockets of the Service that got their endpoint at connect time, as the agent's
// program prints it.
func (u *undo) translated() int {
	u.Helper()
	out := u.eventually("sockets translated", "kubectl", "-n", "kube-system", "exec", "daemonset/fairway-agent", "--", "fairway", "dump", "--service", "default/web", "--objects")
	n, err := strconv.Atoi(translatedSockets.FindStringSubmatch(out)[1])
	if err != nil {
		u.Fatal(err)
	}
	return n
}

func (u *undo) agentLog() string {
	return u.run("kubectl", "-n", "kube-system", "logs", "daemonset/fairway-agent")
}

// inKernel is a loaded program, with its maps.
type inKernel struct {
	program ebpf.ProgramID
	maps    []ebpf.MapID
}

// attached returns the programs of our hooks in the cgroup of the lab's node. It fails the test if one of the machine's
// links is in a cgroup above the nodes.
func (u *undo) attached() (all []inKernel) {
	u.Helper()
	own, above := cgroupID(u.T, u.name+"/node-1"), cgroupID(u.T, u.name)
	links := link.Iterator{}
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err != nil || info.Cgroup() == nil {
			continue
		}
		switch info.Cgroup().CgroupId {
		case own:
			all = append(all, inKernel{info.Program, mapsOf(u.T, info.Program)})
		case above:
			u.Errorf("link %d is attached above the node", info.ID)
		}
	}
	if err := links.Err(); err != nil {
		u.Fatal(err)
	}
	return all
}

func cgroupID(t *testing.T, path string) uint64 {
	t.Helper()
	var err error
	for _, dir := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var s syscall.Stat_t
		if err = syscall.Stat(filepath.Join(dir, "fairway-lab-"+path), &s); err == nil {
			return s.Ino
		}
	}
	t.Fatalf("no cgroup of %s: %v", path, err)
	return 0
}

func mapsOf(t *testing.T, id ebpf.ProgramID) []ebpf.MapID {
	t.Helper()
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	return ids
}

// unloaded fails the test for each program and map that the kernel still has. It waits a moment, because the kernel
// frees them later.
func (u *undo) unloaded(all []inKernel) {
	u.Helper()
	var left []string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		left = nil
		for _, l := range all {
			if p, err := ebpf.NewProgramFromID(l.program); !errors.Is(err, fs.ErrNotExist) {
				left = append(left, fmt.Sprint("program ", l.program, " ", err))
				p.Close()
			}
			for _, id := range l.maps {
				if m, err := ebpf.NewMapFromID(id); !errors.Is(err, fs.ErrNotExist) {
					left = append(left, fmt.Sprint("map ", id, " ", err))
					m.Close()
				}
			}
		}
		if len(left) == 0 {
			return
		}
	}
	u.Errorf("the kernel still has %v", left)
}
