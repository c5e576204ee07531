package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAddresses asks a real API server, without nodes' programs, what it makes of the objects
// of metallb.io.
func TestAddresses(t *testing.T) {
	l := newLab(t)
	l.run(append(l.upArgs("--nodes", "1"), "--deploy", "", "--images-dir", "")...)
	l.run("kubectl", "apply", "--server-side", "-f", filepath.Join(built.deploy, "components/load-balancer/crds.yaml"))
	l.run("kubectl", "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
	l.run("kubectl", "create", "namespace", "metallb-system")
	t.Run("accepted", func(t *testing.T) { l.in(t).metallbAccepted() })
	t.Run("refused", func(t *testing.T) { l.in(t).metallbRefused() })
}

// metallbAccepted: users' objects are accepted as they are, and read in both versions as they
// were written.
func (l *lab) metallbAccepted() {
	l.run("kubectl", "apply", "--validate=strict", "-f", "../../test/metallb/accepted.yaml")
	l.eventually("former", "kubectl", "get", "bgppeers.v1beta2.metallb.io", "-A")
	get := func(resource, name, path string) string {
		out := l.run("kubectl", "-n", "metallb-system", "get", resource, name, "-o", "jsonpath={"+path+"}")
		return out[strings.LastIndex(out, "\n")+1:] // behind a warning
	}
	for _, c := range []struct{ resource, name, path, want string }{
		{"bgppeers.v1beta2.metallb.io", "former", ".spec['myASN','peerASN','peerAddress','peerPort','holdTime','password']", "64512 64501 192.0.2.201 0 30s secret"},
		{"bgppeers.v1beta2.metallb.io", "former", ".spec.nodeSelectors", `[{"matchExpressions":[{"key":"rack","operator":"In","values":["a"]}],"matchLabels":{"rack":"a"}}]`},
		{"bgppeers.v1beta1.metallb.io", "simple", ".spec['myASN','peerASN','peerAddress','peerPort']", "64512 64512 192.0.2.200 179"},
		{"bgppeers.v1beta1.metallb.io", "simple", ".spec.connectTime", ""}, // v1beta1 has no such field
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

// metallbRefused: what MetalLB's webhook refuses, the API server refuses by the rules of the
// CustomResourceDefinitions. The first line of each document says what the message has in it.
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
