package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// testNodes adds a node to a lab of two nodes, uses it, and removes another node. The pod web and its node port exist.
func (l *lab) testNodes() {
	if out := l.run("add-node"); !strings.Contains(out, "node-3 is Ready") {
		l.Errorf("add-node says %q", out)
	}
	l.testImages()
	port := l.run("kubectl", "get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	l.eventually("It works!", "client", "--", "curl", "-sS", "-m", "2", "http://192.168.49.4:"+port)
	if out := l.input("hostname\n", "shell", "3"); !strings.Contains(out, "node-3") {
		l.Errorf("the shell on node 3 says %q", out)
	}
	if out := l.input("ip -4 address show eth0\n", "shell", "client"); !strings.Contains(out, "198.51.100.10") {
		l.Errorf("the shell on the client says %q", out)
	}
	if out := l.run("__complete", "restart-node", ""); !strings.HasPrefix(out, "node-1\nnode-2\nnode-3\n") {
		l.Errorf("restart-node is completed by %q", out)
	}
	l.run("remove-node", "3")
	if out := l.run("kubectl", "get", "nodes", "-o", "name"); out != "node/node-1\nnode/node-2\n" {
		l.Errorf("without node 3 the nodes are %q", out)
	}
	l.refused("no node \"3\"", "node", "3", "--", "true")
	if _, err := os.Stat(filepath.Join(l.dir(), "nodes/node-3")); err == nil {
		l.Error("the files of node 3 are left")
	}
}

// testImages: node 3 has the images of node 1, in the same files. Node 1 keeps an image that node 3 removes.
func (l *lab) testImages() {
	const busybox = "docker.io/library/busybox:latest"
	images := func(n string) string { // containerd 2 warns of cgroup v1
		return l.run("node", n, "--", "sh", "-c", "ctr -n k8s.io images ls -q 2>/dev/null")
	}
	if one, three := images("1"), images("3"); one != three || !strings.Contains(three, busybox) {
		l.Errorf("node 1 has the images\n%s and node 3\n%s", one, three)
	}
	const layers = "fs/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/usr/bin/fairway"
	programs := func(node string) string {
		found, err := filepath.Glob(filepath.Join(l.dir(), "nodes", node, layers))
		if err != nil || len(found) != 1 {
			l.Fatalf("%s has the program fairway in %v, %v", node, found, err)
		}
		return found[0]
	}
	one, err := os.Stat(programs("node-1"))
	if err != nil {
		l.Fatal(err)
	}
	if three, err := os.Stat(programs("node-3")); err != nil || !os.SameFile(one, three) {
		l.Errorf("the program fairway is unpacked for each node: %v", err)
	}
	all := strings.Fields(images("3"))
	l.run(append([]string{"node", "3", "--", "ctr", "-n", "k8s.io", "images", "rm", "--sync"}, all...)...)
	if left := images("3"); strings.Contains(left, busybox) {
		l.Errorf("node 3 has still the images\n%s", left)
	}
	l.input(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"kept"},"spec":{"nodeName":"node-1",
		"containers":[{"name":"c","image":"busybox","command":["sleep","600"]}]}}`, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "wait", "--for=condition=Ready", "pod/kept", "--timeout=60s")
	l.run("kubectl", "delete", "pod", "kept", "--now")
}

// testRedeploy loads the same image again with a changed overlay. The agents restart, and the change stays.
func (l *lab) testRedeploy() {
	file := filepath.Join(l.dir(), "overlay/kustomization.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		l.Fatal(err)
	}
	changed := string(text) + `- target: {kind: DaemonSet, name: fairway-agent}
  patch: |
    - {op: add, path: /spec/template/metadata/annotations, value: {test: redeployed}}
`
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		l.Fatal(err)
	}
	if out := l.run("redeploy"); !strings.Contains(out, "fairway redeployed") {
		l.Errorf("redeploy says %q", out)
	}
	out := l.run("kubectl", "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=fairway-agent", "-o", "jsonpath={.items[*].metadata.annotations.test}")
	if out != "redeployed redeployed" {
		l.Errorf("after redeploy the agents are annotated %q", out)
	}
}

// testLoad loads an OCI layout, and refuses other directories.
func (l *lab) testLoad() {
	dir := l.TempDir()
	l.refused("is no OCI layout", "load", dir)
	l.refused("there is no file nobody/nothing:v1", "load", "nobody/nothing:v1")
	if out, err := exec.Command("tar", "-xf", filepath.Join(built.images, "pause.tar"), "-C", dir).CombinedOutput(); err != nil {
		l.Fatalf("%v: %s", err, out)
	}
	if out := l.run("load", dir); !strings.Contains(out, "into 2 nodes") {
		l.Errorf("load of a directory says %q", out)
	}
}
