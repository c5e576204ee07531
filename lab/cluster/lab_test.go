package cluster_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairway-net/fairway/internal/testing/docpage"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/node"
)

// webManifest is a pod and a node port as users write them. It has no pull policy, and its images have no tag, so the
// policy is Always.
const webManifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers: [{name: web, image: httpd}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{port: 80, nodePort: 30080}]
---
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  containers:
  - {name: box, image: busybox, command: [sh, -c, "echo I am $(hostname); sleep 600"], resources: {requests: {ephemeral-storage: 1Mi}}}
`

// TestLab runs a dual-stack lab of two nodes from up to down.
func TestLab(t *testing.T) {
	beside(t, 3)
	before := snapshot(t)
	l := newLab(t)
	published := freePort(t)
	file := labFile(t, fmt.Sprintf("nodes: 2\ndual-stack: true\npublish: [%d:30080]\n", published))
	up := l.run(l.upArgs("--config", file)...)
	for _, step := range []string{"control plane ready", "all nodes Ready", "DNS answers on every node"} {
		if !strings.Contains(up, step) {
			t.Errorf("up does not tell %q:\n%s", step, up)
		}
	}
	during := snapshot(t)
	if during.addresses != before.addresses || during.routes != before.routes || during.cgroups != before.cgroups || during.tunables != before.tunables {
		t.Errorf("the lab shows outside of itself:\n%+v\nwas\n%+v", during, before)
	}
	t.Run("dns", func(t *testing.T) { l.in(t).testDNS() })
	t.Run("again", func(t *testing.T) {
		l := l.in(t)
		if out := l.run(l.upArgs("--config", file)...); !strings.Contains(out, "up already") {
			t.Errorf("a second up says %q", out)
		}
		l.refused("a lab with other options is up", l.upArgs("--config", file, "--nodes", "3")...)
		l.refused("fairway nftables", l.upArgs("--config", file, "--proxy-mode", "iptables")...)
	})
	t.Run("pods", func(t *testing.T) { l.in(t).testPods() })
	t.Run("published", func(t *testing.T) { l.in(t).testPublished(published) })
	t.Run("streams", func(t *testing.T) { l.in(t).testStreams() })
	t.Run("forward", func(t *testing.T) { l.in(t).testForward() })
	t.Run("commands", func(t *testing.T) { l.in(t).testCommands() })
	t.Run("end", func(t *testing.T) { l.in(t).testTerminate() })
	t.Run("nodes", func(t *testing.T) { l.in(t).testNodes() })
	t.Run("load", func(t *testing.T) { l.in(t).testLoad() })
	t.Run("redeploy", func(t *testing.T) { l.in(t).testRedeploy() })
	t.Run("faults", func(t *testing.T) { l.in(t).testFaults() })
	t.Run("kubelet", func(t *testing.T) { l.in(t).testKubelet() })
	l.run("down")
	l.gone()
	before.unchanged(t)
	if out := l.run("down"); !strings.Contains(out, "No lab is up") {
		t.Errorf("a second down says %q", out)
	}
}

// in returns the same lab for a subtest.
func (l *lab) in(t *testing.T) *lab { return &lab{T: t, name: l.name, port: l.port} }

// testDNS checks the placement of the DNS pods, their logs after the start, and the import of a CoreDNS ConfigMap.
func (l *lab) testDNS() {
	l.run("kubectl", "-n", "kube-system", "rollout", "status", "deployment/fairway-dns", "--timeout=120s")
	nodes := strings.Fields(l.run("kubectl", "-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-dns", "-o", "jsonpath={.items[*].spec.nodeName}"))
	slices.Sort(nodes)
	if !slices.Equal(nodes, []string{"node-1", "node-2"}) {
		l.Errorf("the DNS pods are on %v, want one on each node", nodes)
	}
	if out := l.run("kubectl", "-n", "kube-system", "logs", "-l", "k8s-app=kube-dns", "--tail=-1"); strings.Contains(out, "level=ERROR") || !strings.Contains(out, "serving DNS") {
		l.Errorf("the log of DNS in a new lab:\n%s", out)
	}
	if out := l.run("node", "1", "--", "dig", "+time=5", "@10.96.0.10", "example.org"); !strings.Contains(out, "status: SERVFAIL") {
		l.Errorf("a name outside of the cluster, where nothing is:\n%s", out)
	}
	outside := []string{"kubectl", "-n", "kube-system", "logs", "-l", "app.kubernetes.io/name=fairway-dns"}
	docpage.Check(l, "../../docs/troubleshooting.md", strings.Join(outside, " "), l.eventually("example.org. A: ", outside...))
	l.input(corednsConfigMap, "kubectl", "apply", "-f", "-")
	l.zone()
	l.run("kubectl", "-n", "kube-system", "rollout", "restart", "deployment/fairway-dns")
	l.run("kubectl", "-n", "kube-system", "rollout", "status", "deployment/fairway-dns", "--timeout=120s")
	for name, address := range map[string]string{"registry.example": "192.0.2.80", "www.corp.example": "198.51.100.9"} {
		// For a moment after the rollout, a node may still send queries to an ending pod that lacks the new names.
		l.eventually(address+"\n", "node", "2", "--", "dig", "+short", "+time=5", "@10.96.0.10", name)
	}
	l.run("kubectl", "-n", "kube-system", "delete", "configmap", "coredns", "coredns-custom")
	l.testZone()
}

// zone adds the component dns-zones, and an Ingress with an address.
func (l *lab) zone() {
	l.run("kubectl", "apply", "-f", "../../deploy/components/dns-zones/rbac.yaml", "-f", "../../deploy/components/dns-zones/service.yaml")
	l.run("kubectl", "-n", "kube-system", "patch", "configmap", "fairway-agent", "--type", "merge", "-p", `{"data":{"DNS_ZONES":"zone.example"}}`)
	l.run("kubectl", "create", "ingress", "shop", "--rule=shop.zone.example/=web:80")
	l.run("kubectl", "patch", "ingress", "shop", "--subresource", "status", "--type", "merge", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.81"}]}}}`)
}

// testZone asks a server of the zone from outside, and removes the zone's objects, which its names follow.
func (l *lab) testZone() {
	server := strings.TrimSpace(l.eventually(".", "kubectl", "-n", "kube-system", "get", "service", "fairway-dns-zones", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"))
	dig := []string{"client", "--", "dig", "+time=2", "+noall", "+comments", "+answer", "@" + server}
	for name, want := range map[string]string{
		"shop.zone.example": "192.0.2.81\n", "fairway-dns-zones.kube-system.zone.example": server + "\n",
		"none.zone.example": "NXDOMAIN", "kubernetes.default.svc.cluster.local": "REFUSED",
	} {
		l.eventually(want, append(dig, name)...)
	}
	l.run("kubectl", "delete", "ingress", "shop")
	l.eventually("NXDOMAIN", append(dig, "shop.zone.example")...)
}

// corednsConfigMap is a ConfigMap of a CoreDNS user: a host, and an extra domain as in k3s.
const corednsConfigMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        errors
        health
        ready
        kubernetes cluster.local in-addr.arpa ip6.arpa
        hosts /etc/coredns/NodeHosts {
            fallthrough
        }
        prometheus :9153
        forward . /etc/resolv.conf
        cache 30
        reload
    }
    import /etc/coredns/custom/*.server
  NodeHosts: |
    192.0.2.80 registry.example
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns-custom, namespace: kube-system}
data:
  corp.server: |
    corp.example:53 {
        hosts {
            198.51.100.9 www.corp.example
        }
    }
`

// testPods checks that pods run, and that clients reach them in every way.
func (l *lab) testPods() {
	l.run("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "../../examples")
	l.input(webManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/web", "pod/box", "--timeout=60s")
	if runtime := l.run("kubectl", "get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.containerRuntimeVersion}"); !strings.Contains(runtime, "containerd://"+os.Getenv("LAB_CONTAINERD")) {
		l.Errorf("the nodes run %s, want containerd %s (make test-containerd)", runtime, os.Getenv("LAB_CONTAINERD"))
	}
	l.eventually("I am box", "kubectl", "logs", "box")
	if out := l.input("through\n", "kubectl", "exec", "-i", "box", "--", "cat"); out != "through\n" {
		l.Errorf("exec with input says %q", out)
	}
	l.eventually("It works!", "kubectl", "exec", "box", "--", "curl", "-sS", "-m", "2", "http://web")
	port := l.run("kubectl", "get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	for _, url := range urls(fabric.Plan{Family: fabric.Dual}, 2, port) {
		l.eventually("It works!", "client", "--", "curl", "-sS", "-m", "2", url)
	}
	l.run("kubectl", "run", "unknown", "--image=nobody/nothing")
	l.eventually("the lab has no image nobody/nothing:latest", "kubectl", "get", "events")
	l.eventually("It works!", "kubectl", "get", "--raw", "/api/v1/namespaces/default/services/web/proxy/")
}

func (l *lab) testCommands() {
	for want, args := range map[string]string{
		"mode nftables":                       "node 1 -- fairway dump",
		"already in this image: tcpdump":      "node 2 -- apt-get install -y tcpdump",
		"podSubnet: 10.244.0.0/16,fd00:":      "kubectl -n kube-system get configmap kubeadm-config -o yaml",
		`"--service-cluster-ip-range=10.96.0`: "kubectl cluster-info dump --namespaces default",
		"0":                                   "kubectl get node node-1 -o jsonpath={.status.allocatable.ephemeral-storage}",
	} {
		if out := l.run(strings.Fields(args)...); !strings.Contains(out, want) {
			l.Errorf("%s does not say %q:\n%s", args, want, out)
		}
	}
	if out, err := l.try("node", "1", "--", "iptables", "-t", "nat", "-L", "KUBE-SERVICES"); err == nil || !strings.Contains(out, "hint: the proxy of this node works in mode nftables") {
		l.Errorf("a chain of another mode: %v, %q", err, out)
	}
	if out := l.run("node", "2", "--", "hostname"); out != "node-2\n" {
		l.Errorf("host name of node 2 is %q", out)
	}
	if out := l.run("client", "ip", "-o", "-4", "address"); !strings.Contains(out, "198.51.100.10/24") {
		l.Errorf("the client's addresses are %q", out)
	}
	var exit *exec.ExitError
	if _, err := l.try("node", "node-1", "sh", "-c", "exit 7"); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		l.Errorf("a command that exits with 7 on a node: %v", err)
	}
	l.refused("lab has node-1, node-2", "node", "3", "--", "true")
	if out := l.run("load", filepath.Join(built.images, "web.tar")); !strings.Contains(out, "web.tar into 2 nodes") {
		l.Errorf("load says %q", out)
	}
	l.refused("no such file", "load", "/nonexistent.tar")
	bad := filepath.Join(l.TempDir(), "bad.tar")
	if err := os.WriteFile(bad, []byte("x\n"), 0o600); err != nil {
		l.Fatal(err)
	}
	l.refused("import "+bad, "load", bad)
	if out := l.run("status"); strings.Count(out, "Ready") != 2 || strings.Count(out, "fairway nftables") != 2 {
		l.Errorf("status does not show two nodes that are Ready, by nftables:\n%s", out)
	}
	if out := l.run("list"); !regexp.MustCompile(l.name + ` +up +2 +\S+`).MatchString(out) {
		l.Errorf("list does not show this lab:\n%s", out)
	}
	if out := l.run("logs"); !strings.Contains(out, "control-plane\n") || !strings.Contains(out, "kubelet-node-2\n") {
		l.Errorf("logs does not tell whose there are:\n%s", out)
	}
	if out := l.run("logs", "kubelet", "2"); !strings.Contains(out, "kubelet") {
		l.Errorf("the log of kubelet on node 2 is %q", out)
	}
	l.refused(`no log "kublet"`, "logs", "kublet")
	if out := l.run("kubeconfig"); out != l.dir()+"/kubeconfig\n" {
		l.Errorf("kubeconfig is %q", out)
	}
}

// testTerminate ends running commands with signals, as timeout(1) and CI do.
func (l *lab) testTerminate() {
	for _, c := range []struct {
		says string
		args []string
	}{
		{"Forwarding from", []string{"kubectl", "port-forward", "pod/web", ":80"}},
		{"Starting to serve", []string{"kubectl", "proxy", "--port=0"}},
		{"", []string{"logs", "control-plane", "-f"}},
	} {
		cmd := l.cmd(c.args...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			l.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			l.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || !strings.Contains(lines.Text(), c.says) {
			l.Errorf("%q says %q", c.args, lines.Text())
		}
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			l.Fatal(err)
		}
		for lines.Scan() {
		}
		_ = cmd.Wait() // the test only needs the command to end, with any status
	}
}

// testKubelet: a node survives the end of its kubelet, as a machine with systemd does.
func (l *lab) testKubelet() {
	find := []string{"node", "1", "--", "pgrep", "-f", "child kubelet .*/node-1$"}
	old := strings.TrimSpace(l.run(find...))
	if _, err := strconv.Atoi(old); err != nil {
		l.Fatalf("kubelet's process is %q", old)
	}
	l.run("node", "1", "--", "kill", "-9", old)
	l.run("kubectl", "delete", "pod", "box", "--now")
	l.input(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"after"},"spec":{"nodeName":"node-1",
		"containers":[{"name":"c","image":"busybox","command":["sleep","600"]}]}}`, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/after", "--timeout=60s")
	if now := strings.TrimSpace(l.run(find...)); now == old || now == "" {
		l.Errorf("kubelet's process was %s and is %q", old, now)
	}
}

// TestIPv6 runs a lab without any IPv4 address.
func TestIPv6(t *testing.T) {
	beside(t, 1)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "1", "--ipv6", "--metrics-server")...)
	if out := l.run("node", "1", "--", "ip", "-o", "-4", "address", "show", "dev", "eth0"); out != "" {
		t.Errorf("the node has %s", out)
	}
	l.input(webManifest, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
	port := l.run("kubectl", "get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	l.eventually("It works!", "client", "--", "curl", "-sS", "-m", "2", urls(fabric.Plan{Family: fabric.IPv6}, 1, port)[0])
	l.run("kubectl", "patch", "service", "web", "--type=merge", "-p", `{"spec":{"type":"LoadBalancer"}}`)
	l.eventually("It works!", "client", "--", "curl", "-sSg", "-m", "2", "http://[fd00:49::c8]/")
	l.testMetrics()
}

// TestDownAfterKill kills all processes of a lab with a working load balancer in front, and then removes the lab.
func TestDownAfterKill(t *testing.T) {
	beside(t, 2)
	before := snapshot(t)
	l := newLab(t)
	up := l.upArgs("--nodes", "2", "--load-balancer", "edge")
	l.run(up...)
	l.testEdge()
	other := exec.Command("cat") // has this lab's mounts in its namespace, but does not belong to the lab; ends with its input
	other.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	input, err := other.StdinPipe()
	if err := errors.Join(err, other.Start()); err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	pids := l.pids()
	// The control plane; for each node init, containerd, kubelet, the agent's shim, pause and program; the DNS pods.
	if len(pids) < 13 {
		t.Fatalf("found only processes %v", pids)
	}
	killAll(t, pids)
	if err := errors.Join(input.Close(), other.Wait()); err != nil {
		t.Errorf("a process that is not of the lab ended with it: %v", err)
	}
	l.refused("ended", "status")
	l.refused("the lab is broken", up...)
	l.run("down")
	l.gone()
	before.unchanged(t)
}

// killAll kills processes through handles that it opens first. The end of a node's init also ends other processes, and
// the kernel may reuse their PIDs.
func killAll(t *testing.T, pids []int) {
	t.Helper()
	var fds []int
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			t.Fatalf("open process %d: %v", pid, err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	for _, fd := range fds {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatalf("kill: %v", err)
		}
	}
}

// TestUpInterrupted ends an up while it unpacks images, and while the nodes start. After a polite signal up must clean
// up. After SIGKILL it cannot.
func TestUpInterrupted(t *testing.T) {
	beside(t, 1)
	before := snapshot(t)
	for name, c := range map[string]struct {
		signal unix.Signal
		at     string
	}{
		"terminated":      {unix.SIGTERM, "containerd runs"},
		"killed":          {unix.SIGKILL, "containerd runs"},
		"unpacking":       {unix.SIGTERM, "network and certificates made"},
		"unpacking-alone": {unix.SIGKILL, "network and certificates made"},
	} {
		t.Run(name, func(t *testing.T) { newLab(t).interrupted(c.signal, c.at) })
	}
	before.unchanged(t)
}

// interrupted sends a signal to up when up prints at.
func (l *lab) interrupted(signal unix.Signal, at string) {
	cmd := l.cmd(l.upArgs("--nodes", "1")...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.Fatal(err)
	}
	var told strings.Builder
	for buf := make([]byte, 256); !strings.Contains(told.String(), at); {
		n, err := out.Read(buf)
		told.Write(buf[:n])
		if err != nil {
			l.Fatalf("up ended early: %s", told.String())
		}
	}
	if err := cmd.Process.Signal(signal); err != nil {
		l.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		l.Error("an up that was interrupted says it succeeded")
	}
	if signal == unix.SIGKILL {
		l.refused("up was killed", l.upArgs("--nodes", "1")...)
		l.run("down")
	}
	l.gone()
}

// TestTwoLabs: two labs do not affect each other. The second lab still works after the first is removed.
func TestTwoLabs(t *testing.T) {
	beside(t, 3) // two control planes with one node each
	before := snapshot(t)
	one, two := newLab(t), newLab(t)
	two.name += "-other"
	one.run(one.upArgs("--nodes", "1", "--deploy", "")...)
	two.refused("choose another with --api-port", append(two.upArgs("--nodes", "1"), "--api-port", strconv.Itoa(one.port))...)
	two.run(two.upArgs("--nodes", "1", "--deploy", "")...)
	one.run("down")
	one.gone()
	for _, dir := range node.Mountpoints {
		two.run("node", "1", "--", "mountpoint", dir)
	}
	two.input(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"pod"},"spec":{"hostNetwork":true,"tolerations":
		[{"operator":"Exists"}],"containers":[{"name":"c","image":"busybox","command":["sleep","600"]}]}}`,
		"kubectl", "apply", "-f", "-")
	two.run("kubectl", "wait", "--for=condition=Ready", "pod/pod", "--timeout=60s")
	two.describesTroubles()
	two.run("down")
	two.gone()
	before.unchanged(t)
}

// describesTroubles shows, in a lab without manifests, two examples of docs/troubleshooting.md: a node without a CNI
// plugin and a Service without a load balancer.
func (l *lab) describesTroubles() {
	const doc = "../../docs/troubleshooting.md"
	l.input(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"late"},"spec":{"nodeName":"node-1","tolerations":
		[{"operator":"Exists"}],"containers":[{"name":"c","image":"busybox"}]}}`, "kubectl", "apply", "-f", "-")
	l.input(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"lb"},"spec":{"type":"LoadBalancer","clusterIP":"10.110.124.145",
		"ports":[{"port":80,"nodePort":31291}]}}`, "kubectl", "apply", "-f", "-")
	docpage.Check(l, doc, "kubectl describe pod late", l.eventually("NetworkNotReady", "kubectl", "describe", "pod", "late"))
	docpage.Check(l, doc, "kubectl get svc lb", l.run("kubectl", "get", "svc", "lb"))
}

// TestUpTogether starts the same lab twice at once. One up succeeds, and the other reports the reason for its failure.
func TestUpTogether(t *testing.T) {
	beside(t, 1)
	l := newLab(t)
	first := l.cmd(l.upArgs("--nodes", "1", "--deploy", "")...)
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("up says nothing")
	}
	l.refused("another fairway-lab up or down is at work", l.upArgs("--nodes", "1")...)
	l.refused("another fairway-lab up or down is at work", "down")
	for lines.Scan() {
	}
	if err := first.Wait(); err != nil {
		t.Errorf("the first up: %v", err)
	}
	l.run("status")
}
