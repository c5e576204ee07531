package cluster_test

import (
	"testing"
)

// TestPages walks the pages about nodes in a lab.
func TestPages(t *testing.T) {
	first(t, 3)
	w := newLab(t).transcripts()
	w.run(w.upArgs("--nodes", "2")...)
	w.pages([]page{{"docs/maintenance.md", (*walk).maintenance}})
}

// maintenance takes a node out and back, adds one and removes it.
func (w *walk) maintenance(blocks map[string][]shown) {
	w.input(webService, "kubectl", "apply", "-f", "-")
	w.run("kubectl", "rollout", "status", "deployment/web", "--timeout=60s")
	w.block(blocks, "out")
	w.run("restart-node", "2")
	w.block(blocks, "back")
	w.run("add-node")
	w.block(blocks, "added")
	w.block(blocks, "remove")
	w.run("remove-node", "3")
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
