package cluster_test

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// weightsManifest asks for weights of the pods of TestTenants.
const weightsManifest = `
apiVersion: v1
kind: Service
metadata: {name: weighted, annotations: {fairway.net/weights: "true"}}
spec: {selector: {weighted: "true"}, ports: [{port: 80}]}
`

// testWeights runs `fairway controller` against the real API server. A weight goes from a pod to the EndpointSlice and
// to an agent. Another controller continues when the first one ends.
func (l *lab) testWeights() {
	l.input(weightsManifest, "kubectl", "create", "-f", "-")
	l.run("kubectl", "label", "pod", "bank", "client", "weighted=true") // client has no weight, so 1
	slice := []string{"kubectl", "get", "endpointslices", "-l", "kubernetes.io/service-name=weighted", "-o", "yaml"}
	for i, weight := range []string{"7", "9"} {
		l.run("kubectl", "annotate", "--overwrite", "pod", "bank", "fairway.net/weight="+weight)
		ctx, stop := context.WithCancel(context.Background())
		cmd := exec.CommandContext(ctx, built.fairway, "controller", "--kubeconfig", filepath.Join(l.dir(), "kubeconfig"), "--identity", "test-"+weight)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		var log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := cmd.Start(); err != nil {
			stop()
			l.Fatal(err)
		}
		l.eventually("="+weight+"\n", slice...)
		// The pod's own node shows "…:80(local)*7".
		l.eventually("*"+weight, "kubectl", "-n", "kube-system", "exec", "ds/fairway-agent", "--", "fairway", "dump", "--service", "default/weighted")
		stop()
		if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "context canceled") {
			l.Errorf("controller %d ends with %v:\n%s", i+1, err, &log)
		}
	}
	l.run("kubectl", "delete", "service", "weighted")
}
