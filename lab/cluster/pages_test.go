package cluster_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/testing/docpage"
)

// TestPages walks README, and pages about gateways and nodes, in a lab.
func TestPages(t *testing.T) {
	first(t, 3)
	w := newLab(t).transcripts()
	w.run(w.upArgs("--nodes", "2")...)
	w.Run("README.md", func(t *testing.T) { w.sameDir(t).pastesReadme() })
	w.input(webService, "kubectl", "apply", "-f", "-")
	w.run("kubectl", "rollout", "status", "deployment/web", "--timeout=60s")
	// maintenance.md comes last: for a minute after the removal of a node, fairway install waits for its pods to go.
	w.pages([]page{{"docs/backup.md", (*walk).backup}, {"docs/gateway.md", (*walk).installGateways}, {"examples/gateway/README.md", (*walk).gateways},
		{"docs/from-ingress-nginx.md", (*walk).fromIngressNginx},
		{"docs/troubleshooting-policies.md", (*walk).troubles}, {"docs/maintenance.md", (*walk).maintenance}})
}

// pasted matches README's commands and their output.
var pasted = regexp.MustCompile("(?s)<!-- test: try it -->\n```sh\n(.*?)```\n\n```\n(.*?)```\n")

// pastesReadme pastes the commands of README in a directory with bin/, as the repository has it.
func (w *walk) pastesReadme() {
	text, err := os.ReadFile("../../README.md")
	m := pasted.FindStringSubmatch(string(text))
	if err != nil || m == nil {
		w.Fatalf("README.md has no commands: %v", err)
	}
	if err := os.Symlink(w.dir, filepath.Join(w.dir, "bin")); err != nil {
		w.Fatal(err)
	}
	out, err := w.bash(w.dir, m[1])
	address := regexp.MustCompile(`10\.\d+\.\d+\.\d+:80/TCP|node-\d`)
	if err != nil || !docpage.Matches(address.ReplaceAllString(m[2], "X"), address.ReplaceAllString(out, "X")) {
		w.Errorf("%v\n%s\nand README.md shows\n%s", err, out, m[2])
	}
	w.run("kubectl", "delete", "deployment/hello", "service/hello", "--timeout=60s")
	if strings.Contains(m[1], "$ ") {
		w.Error("the commands have a prompt, and cannot be pasted")
	}
}

// maintenance takes a node out and back, adds one and removes it.
func (w *walk) maintenance(blocks map[string][]shown) {
	w.block(blocks, "out")
	w.run("restart-node", "2")
	w.block(blocks, "back")
	w.run("add-node")
	w.block(blocks, "added")
	w.block(blocks, "remove")
	w.run("fault", "node", "3", "kill")
	w.block(blocks, "removed")
	w.run("remove-node", "3")
}

// backup saves objects, and repairs what is deleted.
func (w *walk) backup(blocks map[string][]shown) {
	w.show(shown{command: "fairway install"}) // the lab's objects are kubectl's
	for _, name := range []string{"save", "settings", "inventory", "secret"} {
		w.block(blocks, name)
	}
}

// smallPool has one address for the two Services that want it.
const smallPool = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: small, namespace: metallb-system}
spec: {addresses: [192.168.49.150/32], autoAssign: false}
---
apiVersion: v1
kind: Service
metadata: {name: one, annotations: {metallb.io/address-pool: small}}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80}]}
`

// troubles makes what the page repairs.
func (w *walk) troubles(blocks map[string][]shown) {
	w.input(smallPool, "kubectl", "apply", "-f", "-")
	w.eventually("192.168.49.150", "kubectl", "get", "service", "one")
	_, service, _ := strings.Cut(smallPool, "---\n")
	w.input(strings.Replace(service, "name: one", "name: two", 1), "kubectl", "apply", "-f", "-")
	w.block(blocks, "pool")
	w.show(shown{command: "fairway drain node-2"})
	w.block(blocks, "drained")
}

// webService is a Service of type LoadBalancer with four pods.
const webService = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: httpd, imagePullPolicy: IfNotPresent}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, nodePort: 30080}]}
`
