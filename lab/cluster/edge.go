package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/lab/controlplane"
	"github.com/fairway-net/fairway/lab/fabric"
	"github.com/fairway-net/fairway/lab/pki"
)

// edgeAccount is the identity of `fairway edge` at the API server. The component edge creates this service account.
const edgeAccount = "system:serviceaccount:kube-system:fairway-edge"

// EdgeTargets are the values of Options.EdgeTarget, the default first.
var EdgeTargets = []string{"instance", "ip"}

// checkEdge returns an error if the edge's options do not fit together.
func (o Options) checkEdge() error {
	switch {
	case !slices.Contains(EdgeTargets, o.EdgeTarget):
		return fmt.Errorf("unknown edge target %q [choose one of %s]", o.EdgeTarget, strings.Join(EdgeTargets, ", "))
	case o.LoadBalancer != BalancerEdge && o.EdgeTarget != EdgeTargets[0]:
		return errors.New("--edge-target is for --load-balancer edge")
	case o.LoadBalancer == BalancerEdge && o.Deploy == "":
		return errors.New("--load-balancer edge needs Fairway's manifests [choose --load-balancer none beside --deploy '']")
	}
	return nil
}

func (l Lab) edgeDir() string { return l.path("edge") }

// edgeConfig returns the configuration of `fairway edge`. Its health checks run more often than by default, because
// users break nodes on purpose.
func (b *builder) edgeConfig(kubeconfig string) string {
	text := fmt.Sprintf(`apiVersion: edge.fairway.net/v1alpha1
kind: EdgeConfiguration
kubeconfig: %s
addresses: [%s]
clusterCIDRs: [%s]
targetType: %s
healthCheck: {interval: 1s, timeout: 1s}
metricsBindAddress: 127.0.0.1:10282
`, kubeconfig, list(b.plan.Routed()), list(b.plan.Pods()), b.EdgeTarget)
	if b.EdgeTarget == "ip" {
		text += "routes: static\n"
	}
	return text
}

// makeEdge writes the files of the edge's machine. It keeps an existing configuration, because the user may have edited
// it.
func (b *builder) makeEdge() error {
	if err := os.MkdirAll(b.edgeDir(), 0o755); err != nil {
		return fmt.Errorf("create the edge's directory: %w", err)
	}
	if err := fileOfImage(b.Image, "usr/bin/fairway", filepath.Join(b.edgeDir(), "fairway")); err != nil {
		return fmt.Errorf("take fairway out of %s: %w", b.Image, err)
	}
	config := filepath.Join(b.edgeDir(), "edge.yaml")
	if _, err := os.Stat(config); err == nil {
		return nil
	}
	ca, err := pki.Load(b.pki())
	if err != nil {
		return err
	}
	if err := ca.Issue(fabric.Edge, pki.Subject{Name: edgeAccount}); err != nil {
		return err
	}
	kubeconfig := controlplane.Kubeconfig(b.pki(), fabric.Edge)
	if err := ca.Kubeconfig(kubeconfig, fabric.Edge, b.plan.APIServer()); err != nil {
		return err
	}
	if err := os.WriteFile(config, []byte(b.edgeConfig(kubeconfig)), 0o644); err != nil {
		return fmt.Errorf("write the edge's configuration: %w", err)
	}
	return nil
}

// startEdge starts `fairway edge` on its machine.
func (b *builder) startEdge() error {
	if err := b.makeEdge(); err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(b.edgeDir(), "fairway"), "edge", "--config", filepath.Join(b.edgeDir(), "edge.yaml"))
	return b.start(fabric.Edge, fabric.Edge, cmd)
}
