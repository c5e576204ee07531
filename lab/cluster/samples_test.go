package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const metallbDir = "../../test/metallb"

// samplesWeb is a pod on each node that the Services of the samples have.
const samplesWeb = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: httpd, imagePullPolicy: IfNotPresent}]
---
`

// A sample is one of test/metallb/samples: what of the world is beside it, and what the lab says of it then: lines of
// fairway status --load-balancers -o wide.
type sample struct {
	beside string // kinds
	want   []string
}

// anything is an object beside every sample: kubectl takes no empty input.
const anything = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: beside-the-sample}\n---\n"

// noSession is what a speaker says of a router that there is not.
const noSession = "the session is not up: "

// ownPool are the samples that bring their pool; Service own takes of it what it can.
var ownPool = map[string]sample{
	"pool":           {"", []string{"default/own 203.0.113.0: no L2Advertisement and no BGPAdvertisement is for its pool and Service"}},
	"pool-l2":        {"", []string{"default/own 203.0.113.0 l2 node-"}},
	"pool-bgp":       {"BGPPeer", []string{"203.0.113.0 bgp node-1 to tor: " + noSession, "203.0.113.0 bgp node-2 to spine: " + noSession}},
	"deployment-l2":  {"", []string{"default/samples-web 203.0.113.1 l2 node-"}},
	"deployment-bgp": {"", []string{"203.0.113.1 bgp node-1 to rack: " + noSession, "203.0.113.1 bgp node-2 to rack-ipv6: the session does not carry its address family"}},
}

// worldsPools are those for the pools of the world, of which Services first and second have addresses.
var worldsPools = map[string]sample{
	"l2-pools":            {"", []string{"default/first 192.0.2.0 l2 node-", "default/second 192.0.2.16: no L2Advertisement"}},
	"l2-nodes":            {"", []string{"default/first 192.0.2.0 l2 node-2 ", "192.0.2.0 l2 node-1: no L2Advertisement's nodeSelectors match this node"}},
	"bgp-pools-peers":     {"BGPPeer", []string{"192.0.2.0 bgp node-1 to spine: " + noSession, "192.0.2.0 bgp node-1 to tor: no BGPAdvertisement is for this BGPPeer"}},
	"bgp-pool-labels":     {"BGPPeer", []string{"192.0.2.16 bgp node-1 to tor: " + noSession, "default/first 192.0.2.0: no L2Advertisement and no BGPAdvertisement"}},
	"bgp-communities":     {"BGPPeer", []string{"192.0.2.0 bgp node-1 to tor: " + noSession, "192.0.2.0 bgp node-2 to spine: " + noSession}},
	"bgp-community-alias": {"BGPPeer", []string{"192.0.2.0 bgp node-1 to tor: " + noSession, "192.0.2.0 bgp node-2 to spine: " + noSession}},
	"bgp-nodes":           {"BGPPeer", []string{"192.0.2.0 bgp node-2 to spine: " + noSession, "192.0.2.0 bgp node-1: no BGPAdvertisement's nodeSelectors match this node"}},
	"peer":                {"BGPAdvertisement", []string{"192.0.2.0 bgp node-1 to rack: " + noSession, "192.0.2.16 bgp node-2 to rack: " + noSession}},
	"peer-bfd":            {"BGPAdvertisement", []string{"192.0.2.0 bgp node-1 to rack: " + noSession}},
	"peer-connect":        {"BGPAdvertisement", []string{"192.0.2.0 bgp node-1 to rack: " + noSession}},
	"peer-vrf":            {"BGPAdvertisement", []string{"192.0.2.0 bgp node-1 to rack: " + noSession, "speaker-node-1: BGPPeer rack: vrf: blue: "}},
	"peer-password":       {"BGPAdvertisement", []string{"speaker-node-1: BGPPeer rack: Secret rack-password of type kubernetes.io/basic-auth"}},
}

// TestSamples: objects like those of each of MetalLB's samples are applied to a real API server as they are, and
// controller and speakers do what MetalLB's would. What speakers tell routers by them is TestSamples in
// internal/kube/loadbalancer.
func TestSamples(t *testing.T) {
	beside(t, 2)
	l := newLab(t)
	l.run(l.upArgs("--nodes", "2")...)
	t.Run("refused", func(t *testing.T) { l.in(t).transcripts().transcript("refused") })
	l.run("kubectl", "-n", "metallb-system", "delete", "l2advertisement,ipaddresspool", "lab")
	l.input(samplesWeb, "kubectl", "apply", "-f", "-")
	l.run("kubectl", "rollout", "status", "daemonset/web", "--timeout=120s")
	l.input(sampleService("own"), "kubectl", "apply", "-f", "-")
	for name, s := range ownPool {
		l.sample(name, s)
	}
	l.run("kubectl", "delete", "service", "own", "--timeout=30s")
	l.allocation()
	l.input(world(t, "IPAddressPool")+sampleService("first")+sampleService("second"), "kubectl", "apply", "-f", "-")
	for name, s := range worldsPools {
		l.sample(name, s)
	}
	if files, err := filepath.Glob(filepath.Join(metallbDir, "samples", "*.yaml")); err != nil || len(files) != len(ownPool)+len(worldsPools)+1 {
		t.Errorf("%d files, %v: one has no line here", len(files), err)
	}
}

// sampleService is a Service that asks for an address of the pool of its name.
func sampleService(name string) string {
	return balancerService(name, "metallb.io/address-pool: "+name, "selector: {app: web}")
}

// world is what of world.yaml is of some kinds.
func world(t *testing.T, kinds string) (some string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(metallbDir, "world.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(text), "---\n") {
		for kind := range strings.FieldsSeq(kinds) {
			if strings.Contains(doc, "kind: "+kind+"\n") {
				some += doc + "---\n"
			}
		}
	}
	return some
}

// strictly applies a sample and what is beside it, about which the API server must have nothing to say, and returns its
// file.
func (l *lab) strictly(name, beside string) (file string) {
	l.Helper()
	file = filepath.Join(metallbDir, "samples", name+".yaml")
	if out := l.input(beside, "kubectl", "apply", "--validate=strict", "-f", file, "-f", "-"); strings.Contains(out, "Warning") {
		l.Errorf("%s: %s", name, out)
	}
	return file
}

// sample applies a sample beside its world, and removes it when the lab has said what it must.
func (l *lab) sample(name string, s sample) {
	l.Helper()
	beside := anything + world(l.T, s.beside)
	file := l.strictly(name, beside)
	l.balancers(name, s.want...)
	if name == "peer-bfd" { // it has the profile first, which is not deleted as long as the BGPPeer names it
		l.refusedBy("BGPPeer rack uses BFDProfile quick", []string{"kubectl", "-n", "metallb-system", "delete", "--dry-run=server", "bfdprofile", "quick"})
		l.run("kubectl", "-n", "metallb-system", "delete", "bgppeer", "rack")
		l.eventually("deleted", "kubectl", "-n", "metallb-system", "delete", "--dry-run=server", "bfdprofile", "quick")
	}
	l.input(beside, "kubectl", "delete", "--ignore-not-found", "--timeout=60s", "-f", file, "-f", "-")
}

// balancers waits until fairway status --load-balancers has lines that begin so, and says nothing else of the
// configuration.
func (l *lab) balancers(what string, lines ...string) {
	l.Helper()
	var text string
	var left []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		out, _ := exec.Command(built.fairway, "status", "--load-balancers", "-o", "wide", "--kubeconfig", filepath.Join(l.dir(), "kubeconfig")).CombinedOutput()
		text, left = "", nil
		for line := range strings.Lines(string(out)) {
			if !strings.HasPrefix(line, "    ") { // else it is the rest of a line
				text += "\n"
			}
			text += strings.Join(strings.Fields(line), " ") + " "
		}
		problem := false
		for _, want := range lines {
			problem = problem || strings.HasPrefix(want, "speaker-")
			if !strings.Contains(text, "\n"+want) {
				left = append(left, want)
			}
		}
		if len(left) == 0 && problem == strings.Contains(text, "Problems of the configuration") {
			return
		}
	}
	l.Fatalf("%s: %q is not in fairway status --load-balancers -o wide, or there are other problems:\n%s", what, left, text)
}

// allocation: of a pool with serviceAllocation those get addresses that it is for, and none that ends in .0.
func (l *lab) allocation() {
	l.Helper()
	l.run("kubectl", "create", "namespace", "sales")
	l.run("kubectl", "create", "namespace", "chosen")
	l.run("kubectl", "label", "namespace", "chosen", "samples=selected")
	file := l.strictly("pool-allocation", anything)
	front := func(name, namespace, labels string) string {
		return strings.Replace(balancerService(name, "", ""), "annotations: {}", "namespace: "+namespace+", labels: {"+labels+"}", 1)
	}
	l.input(front("front", "sales", "tier: front"), "kubectl", "apply", "-f", "-")
	l.eventually("<203.0.113.1>", "kubectl", "-n", "sales", "get", "service", "front", "-o", "jsonpath=<{.status.loadBalancer.ingress[*].ip}>")
	l.input(front("front", "default", "tier: front")+front("back", "sales", "tier: back"), "kubectl", "apply", "-f", "-")
	l.input(front("front", "chosen", "tier: front"), "kubectl", "apply", "-f", "-")
	l.eventually("<203.0.113.2>", "kubectl", "-n", "chosen", "get", "service", "front", "-o", "jsonpath=<{.status.loadBalancer.ingress[*].ip}>")
	l.eventually("AllocationFailed", "kubectl", "-n", "default", "get", "events", "--field-selector", "involvedObject.name=front")
	l.eventually("AllocationFailed", "kubectl", "-n", "sales", "get", "events", "--field-selector", "involvedObject.name=back")
	l.run("kubectl", "delete", "namespace", "sales", "chosen", "--timeout=60s")
	l.run("kubectl", "delete", "service", "front", "--timeout=30s")
	l.input(anything, "kubectl", "delete", "-f", file, "-f", "-")
}
