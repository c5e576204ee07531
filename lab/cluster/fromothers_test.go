//go:build pages

package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/image"
)

// metallbVersion is what test/metallb/go.mod builds.
const metallbVersion = "v0.15.2"

// TestFromOthers walks the pages for those who come from other programs, in one lab. The lab begins with kube-proxy, the
// plugin bridge and MetalLB's own programs.
func TestFromOthers(t *testing.T) {
	first(t, 2)
	w := newLab(t).transcripts()
	w.run(w.upArgs("--nodes", "2", "--deploy", "", "--pod-network", "bridge", "--kube-proxy", built.kubeProxy, "--load-balancer", "none")...)
	w.pages([]page{{"docs/from-metallb.md", (*walk).fromMetalLB}, {"docs/from-flannel.md", (*walk).fromFlannel}})
}

// metallbObjects are a pool and its announcement.
const metallbObjects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: default, namespace: metallb-system}
spec: {addresses: [192.168.49.100-192.168.49.120]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: default, namespace: metallb-system}
`

// fromMetalLB begins with MetalLB, which has given an address and announces it.
func (w *walk) fromMetalLB(blocks map[string][]shown) {
	w.metallb()
	w.input(webService, "kubectl", "apply", "-f", "-")
	w.run("kubectl", "rollout", "status", "deployment/web", "--timeout=60s")
	w.eventually("192.168.49.100", "kubectl", "get", "service", "web")
	asks := []string{"client", "--", "curl", "-sS", "-m", "2", "http://192.168.49.100"}
	w.eventually("It works!", asks...)
	for _, name := range []string{"agents", "refused", "stop", "start"} {
		w.block(blocks, name)
		w.eventually("It works!", asks...)
	}
	w.block(blocks, "back")
	w.eventually("It works!", asks...)
	// Forward again: later pages begin with Fairway's load balancer.
	again := w.pageBlocks("docs/from-metallb.md")
	w.block(again, "stop")
	w.block(again, "start")
}

// metallb brings MetalLB's programs and manifest into the lab.
func (w *walk) metallb() {
	w.Helper()
	dir := filepath.Join(filepath.Dir(built.lab), "metallb")
	for _, name := range []string{"controller", "speaker"} {
		var tree image.Tree
		tree.Copy("/"+name, filepath.Join(dir, name))
		tree.Dir("/tmp", 0o777|os.ModeSticky)
		layer, err := tree.Layer()
		if err != nil {
			w.Fatalf("%v: make bin/metallb builds it", err)
		}
		img := image.Image{Names: []string{fmt.Sprintf("quay.io/metallb/%s:%s", name, metallbVersion)}, Layers: []*image.Layer{layer}}
		img.Config.Entrypoint = []string{"/" + name}
		archive := filepath.Join(w.dir, name+".tar")
		if err := image.WriteFile(archive, img); err != nil {
			w.Fatal(err)
		}
		w.run("load", archive)
	}
	manifest, err := os.ReadFile(filepath.Join(dir, "metallb-native.yaml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(w.dir, "metallb-native.yaml"), manifest, 0o644)
	}
	if err != nil {
		w.Fatal(err)
	}
	w.run("kubectl", "apply", "-f", filepath.Join(w.dir, "metallb-native.yaml"))
	w.run("kubectl", "-n", "metallb-system", "rollout", "status", "deployment/controller", "--timeout=90s")
	w.run("kubectl", "-n", "metallb-system", "rollout", "status", "daemonset/speaker", "--timeout=90s")
	objects := filepath.Join(w.dir, "objects.yaml")
	if err := os.WriteFile(objects, []byte(metallbObjects), 0o644); err != nil {
		w.Fatal(err)
	}
	w.until("kubectl apply -f " + objects) // MetalLB's webhook must answer
}

// flannelDaemonSet stands in for flanneld, which is not needed once its device and routes are there.
const flannelDaemonSet = `
apiVersion: v1
kind: Namespace
metadata: {name: kube-flannel}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-flannel-ds, namespace: kube-flannel}
spec:
  selector: {matchLabels: {app: flannel}}
  template:
    metadata: {labels: {app: flannel}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 0
      containers: [{name: kube-flannel, image: busybox, imagePullPolicy: IfNotPresent, command: [sleep, "100000"]}]
`

// flannelDevice makes what flannel's VXLAN backend has on node $1 of two, whose peer is node $2.
const flannelDevice = `
me=$1 peer=$2
mv /etc/cni/net.d/10-bridge.conflist /etc/cni/net.d/10-flannel.conflist
ip link add flannel.1 address 02:00:00:00:f1:0$me type vxlan id 1 local 192.168.49.$((me+1)) dev eth0 dstport 8472 nolearning
ip address add 10.244.$((me-1)).0/32 dev flannel.1
ip link set flannel.1 up mtu 1450
ip neighbour replace 10.244.$((peer-1)).0 lladdr 02:00:00:00:f1:0$peer dev flannel.1 nud permanent
bridge fdb replace 02:00:00:00:f1:0$peer dev flannel.1 dst 192.168.49.$((peer+1))
ip route replace 10.244.$((peer-1)).0/24 via 10.244.$((peer-1)).0 dev flannel.1 onlink
`

// fromFlannel begins with the plugin bridge, and flannel's device between the nodes.
func (w *walk) fromFlannel(blocks map[string][]shown) {
	w.input(flannelDaemonSet, "kubectl", "apply", "-f", "-")
	w.run("kubectl", "annotate", "nodes", "--all", "flannel.alpha.coreos.com/backend-type=vxlan")
	w.run("node", "1", "--", "bash", "-euc", flannelDevice, "flannel", "1", "2")
	w.run("node", "2", "--", "bash", "-euc", flannelDevice, "flannel", "2", "1")
	w.everyPodAnswers("flannel.1")
	w.block(blocks, "refused")
	w.block(blocks, "cordon")
	w.block(blocks, "switch")
	w.everyPodAnswers("fairway-vxlan")
	w.block(blocks, "node")
	w.everyPodAnswers("fairway-vxlan")
	for _, s := range []string{"kubectl drain node-2 --ignore-daemonsets --delete-emptydir-data", "node-2# rm /etc/cni/net.d/10-flannel.conflist; ip link delete cni0", "kubectl uncordon node-2"} {
		if m := prompt.FindStringSubmatch(s); m != nil {
			w.show(shown{node: m[2], command: m[3]})
		} else {
			w.show(shown{command: s})
		}
	}
	w.run("kubectl", "rollout", "status", "deployment/web", "--timeout=60s")
	w.block(blocks, "done")
	w.everyPodAnswers("fairway-vxlan")
}

// everyPodAnswers asks every pod of web from both nodes, and checks that packets to the other node use the device.
func (w *walk) everyPodAnswers(device string) {
	w.Helper()
	for _, pod := range strings.Fields(w.run("kubectl", "get", "pods", "-l", "app=web", "--field-selector=status.phase=Running", "-o", "jsonpath={.items[*].status.podIP}")) {
		for _, n := range []string{"1", "2"} {
			w.eventually("It works!", "node", n, "--", "curl", "-sS", "-m", "2", "http://"+pod)
		}
	}
	if out := w.run("node", "1", "--", "ip", "route", "get", "10.244.1.2"); !strings.Contains(out, "dev "+device) {
		w.Errorf("packets of node 1 to pods of node 2 leave by\n%s", out)
	}
}
