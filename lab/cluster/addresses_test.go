package cluster_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestAddresses creates objects of metallb.io in a real API server, and runs a controller that gives addresses. No node
// has a proxy or a speaker.
func TestAddresses(t *testing.T) {
	beside(t, 1)
	l := newLab(t)
	l.run(append(l.upArgs("--nodes", "1"), "--deploy", "", "--images-dir", "")...)
	l.run("kubectl", "apply", "--server-side", "-f", filepath.Join(built.deploy, "pools/crds.yaml"))
	l.run("kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
	l.run("kubectl", "create", "namespace", "metallb-system")
	t.Run("accepted", func(t *testing.T) { l.in(t).metallbAccepted() })
	t.Run("refused", func(t *testing.T) { l.in(t).metallbRefused() })
	t.Run("policies", func(t *testing.T) { l.in(t).metallbPolicies() })
	stop := l.controller("--load-balancer", "pools")
	t.Run("given", func(t *testing.T) { l.in(t).addressGiven() })
	t.Run("waiting", func(t *testing.T) { l.in(t).addressWaiting() })
	t.Run("kept", func(t *testing.T) {
		l := l.in(t)
		l.input(pool("kept", "192.0.2.40-192.0.2.41")+balancerService("kept", "metallb.io/address-pool: kept", ""), "kubectl", "apply", "-f", "-")
		l.status("kept", "192.0.2.40")
		l.run("kubectl", "-n", "metallb-system", "delete", "ipaddresspool", "kept")
		l.eventually("Service default/kept keeps an address", "kubectl", "-n", "metallb-system", "get", "configurationstate", "controller")
		stop()
		stop = l.controller("--load-balancer", "pools")
		l.input(balancerService("new", "", ""), "kubectl", "apply", "-f", "-")
		l.status("new", "192.0.2.16")
		l.status("kept", "192.0.2.40")
	})
	stop()
	t.Run("namespace", func(t *testing.T) { l.in(t).metallbNamespaceGoes() })
}

// controller runs `fairway controller` on this machine. The controller ends when stop is called or the test ends.
func (l *lab) controller(args ...string) (stop func()) {
	l.Helper()
	cmd := exec.Command(built.fairway, append([]string{"controller", "--kubeconfig", filepath.Join(l.dir(), "kubeconfig"), "--metrics-bind-address", ""}, args...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		l.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			l.Errorf("the controller: %v\n%s", err, log.String())
		}
	})
	l.Cleanup(func() {
		stop()
		if l.Failed() {
			l.Logf("the controller:\n%s", log.String())
		}
	})
	return stop
}

func pool(name, addresses string) string {
	return fmt.Sprintf(`
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: %s, namespace: metallb-system}
spec: {addresses: [%s], autoAssign: %v}
---
`, name, addresses, name == "default")
}

// balancerService returns a Service with an annotation and more fields of its spec.
func balancerService(name, annotation, spec string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s, annotations: {%s}}
spec: {type: LoadBalancer, ports: [{name: http, port: 80}], %s}
---
`, name, annotation, spec)
}

// status waits until a Service has the wanted address. An empty want means no address.
func (l *lab) status(name, want string) {
	l.Helper()
	l.eventually("<"+want+">", "kubectl", "get", "service", name, "-o", "jsonpath=<{.status.loadBalancer.ingress[*].ip}>")
}

// addressGiven: a Service gets an address with all its status fields. The Service keeps the address whatever another
// program writes, and later gives it back.
func (l *lab) addressGiven() {
	l.input(pool("default", "192.0.2.16/28")+pool("asked", "192.0.2.32-192.0.2.33")+
		balancerService("web", "", "")+
		balancerService("foreign", "", "loadBalancerClass: example.com/other")+
		balancerService("asked", "metallb.universe.tf/loadBalancerIPs: 192.0.2.33, metallb.io/allow-shared-ip: key", "")+
		strings.Replace(balancerService("shared", "metallb.io/loadBalancerIPs: 192.0.2.33, metallb.io/allow-shared-ip: key", ""), "port: 80", "port: 80, protocol: UDP", 1),
		"kubectl", "apply", "-f", "-")
	l.status("web", "192.0.2.16")
	l.status("asked", "192.0.2.33")
	l.status("shared", "192.0.2.33")
	l.status("foreign", "")
	get := func(path string) string {
		return l.run("kubectl", "get", "service", "web", "-o", "jsonpath={"+path+"}")
	}
	if got := get(".status.loadBalancer.ingress[0].ipMode") + get(".metadata.finalizers[0]") + get(".metadata.annotations.metallb\\.io/ip-allocated-from-pool"); got != "VIPservice.kubernetes.io/load-balancer-cleanupdefault" {
		l.Errorf("mode, finalizer and annotation: %s", got)
	}
	l.eventually("IPAllocated", "kubectl", "get", "events", "--field-selector", "involvedObject.name=web,type=Normal")
	l.eventually("deprecatedAnnotation", "kubectl", "get", "events", "--field-selector", "involvedObject.name=asked")
	l.eventually("<1 15>", "kubectl", "-n", "metallb-system", "get", "ipaddresspool", "default", "-o", "jsonpath=<{.status.assignedIPv4} {.status.availableIPv4}>")
	l.eventually("Valid", "kubectl", "-n", "metallb-system", "get", "configurationstate", "controller")
	l.run("kubectl", "patch", "service", "web", "--subresource=status", "--type=merge", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.1"}]}}}`)
	l.status("web", "192.0.2.16")
	l.run("kubectl", "patch", "service", "web", "--type=merge", "-p", `{"spec":{"type":"ClusterIP"}}`)
	l.eventually("<>", "kubectl", "get", "service", "web", "-o", "jsonpath=<{.metadata.finalizers}{.status.loadBalancer.ingress}>")
	l.run("kubectl", "delete", "service", "web", "foreign", "asked", "shared", "--timeout=30s")
}

// addressWaiting: a second Service gets the only address of a pool when the first Service gives it back. A request that
// cannot be met is an event.
func (l *lab) addressWaiting() {
	l.input(pool("one", "192.0.2.50/32")+balancerService("first", "metallb.io/address-pool: one", "")+balancerService("never", "metallb.io/address-pool: missing", ""), "kubectl", "apply", "-f", "-")
	l.status("first", "192.0.2.50")
	l.input(balancerService("second", "metallb.io/address-pool: one", ""), "kubectl", "apply", "-f", "-")
	l.eventually("AllocationFailed", "kubectl", "get", "events", "--field-selector", "involvedObject.name=second")
	l.eventually(`unknown pool "missing"`, "kubectl", "get", "events", "--field-selector", "involvedObject.name=never")
	l.run("kubectl", "delete", "service", "first", "--timeout=30s")
	l.status("second", "192.0.2.50")
	l.run("kubectl", "delete", "service", "second", "never", "--timeout=30s")
}

// metallbAccepted: the API server accepts users' objects unchanged, and returns them in both versions.
func (l *lab) metallbAccepted() {
	l.run("kubectl", "apply", "--validate=strict", "-f", "../../test/metallb/accepted.yaml")
	l.eventually("former", "kubectl", "get", "bgppeers.v1beta2.metallb.io", "-A")
	get := func(resource, name, path string) string {
		out := l.run("kubectl", "-n", "metallb-system", "get", resource, name, "-o", "jsonpath={"+path+"}")
		return out[strings.LastIndex(out, "\n")+1:] // a warning precedes it
	}
	for _, c := range []struct{ resource, name, path, want string }{
		{"bgppeers.v1beta2.metallb.io", "former", ".spec['myASN','peerASN','peerAddress','peerPort','holdTime','password']", "64512 64501 192.0.2.201 0 30s secret"},
		{"bgppeers.v1beta2.metallb.io", "former", ".spec.nodeSelectors", `[{"matchExpressions":[{"key":"rack","operator":"In","values":["a"]}],"matchLabels":{"rack":"a"}}]`},
		{"bgppeers.v1beta1.metallb.io", "simple", ".spec['myASN','peerASN','peerAddress','peerPort']", "64512 64512 192.0.2.200 179"},
		{"bgppeers.v1beta1.metallb.io", "simple", ".spec.connectTime", ""}, // v1beta1 lacks this field
		{"ipaddresspools", "plain", ".spec['autoAssign','avoidBuggyIPs']", "true false"},
		{"bgpadvertisements", "some", ".spec.communities", `["65535:65282","no-export","large:64512:1:2"]`},
	} {
		if got := get(c.resource, c.name, c.path); got != c.want {
			l.Errorf("%s %s %s: %q, want %q", c.resource, c.name, c.path, got, c.want)
		}
	}
	l.refusedPatch("enableGracefulRestart cannot be changed", "bgppeer", "full", `{"spec":{"enableGracefulRestart":false}}`)
	l.run("kubectl", "-n", "metallb-system", "patch", "servicel2status", "l2-abcde", "--subresource=status", "--type=merge", "-p",
		`{"status":{"node":"node-1","serviceName":"web","serviceNamespace":"shop","interfaces":[{"name":"eth0"}]}}`)
	l.refusedPatch("it cannot be changed", "servicel2status", "l2-abcde", `{"status":{"node":"node-2"}}`, "--subresource=status")
	l.run("kubectl", "delete", "-f", "../../test/metallb/accepted.yaml")
}

func (l *lab) refusedPatch(want, kind, name, patch string, args ...string) {
	l.Helper()
	out, err := l.try(append([]string{"kubectl", "-n", "metallb-system", "patch", kind, name, "--type=merge", "-p", patch}, args...)...)
	if err == nil || !strings.Contains(out, want) {
		l.Errorf("%s %s: %v %s, want it refused: %s", kind, patch, err, out, want)
	}
}

// metallbRefused: the rules of the CustomResourceDefinitions refuse the objects that MetalLB's webhook refuses. The
// first line of each document is a part of the expected message.
func (l *lab) metallbRefused() {
	text, err := os.ReadFile("../../test/metallb/refused.yaml")
	if err != nil {
		l.Fatal(err)
	}
	var all strings.Builder
	wanted := map[string]int{}
	docs := strings.Split(string(text), "---\n")
	for i, doc := range docs {
		first, _, _ := strings.Cut(doc, "\n")
		want, ok := strings.CutPrefix(first, "# ")
		if !ok {
			l.Fatalf("a document does not begin with what is wrong with it:\n%s", doc)
		}
		wanted[want]++
		fmt.Fprintf(&all, "%smetadata: {name: refused-%d, namespace: metallb-system}\n---\n", doc, i)
	}
	cmd := l.cmd("kubectl", "create", "--validate=strict", "--dry-run=server", "-f", "-")
	cmd.Stdin = strings.NewReader(all.String())
	out, err := cmd.CombinedOutput()
	if n := strings.Count(string(out), "Error from server"); err == nil || n != len(docs) {
		l.Errorf("%d of %d documents are refused: %v", n, len(docs), err)
	}
	for want, n := range wanted {
		if got := strings.Count(string(out), want); got != n {
			l.Errorf("%d are refused because of %q, want %d", got, want, n)
		}
	}
	if l.Failed() {
		l.Logf("%s", out)
	}
}
