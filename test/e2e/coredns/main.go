// Command coredns prints what kubeadm makes of CoreDNS in a cluster, without the Service: the ConfigMap, the Deployment
// and what they need.
package main

import (
	"fmt"
	"os"
	"strings"
	"text/template"

	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/dns"
)

func main() {
	if err := manifests(); err != nil {
		fmt.Fprintln(os.Stderr, "coredns:", err)
		os.Exit(1)
	}
}

// manifests writes kubeadm's templates with the values that kubeadm gives them.
func manifests() error {
	all := []string{
		dns.CoreDNSServiceAccount, dns.CoreDNSClusterRole, dns.CoreDNSClusterRoleBinding, dns.CoreDNSConfigMap, dns.CoreDNSDeployment,
	}
	t, err := template.New("").Parse(strings.Join(all, "---"))
	if err != nil {
		return fmt.Errorf("parse kubeadm's templates: %w", err)
	}
	err = t.Execute(os.Stdout, map[string]any{
		"DeploymentName": constants.CoreDNSDeploymentName, "Replicas": 2,
		"Image":                "registry.k8s.io/coredns/" + constants.CoreDNSImageName + ":" + constants.CoreDNSVersion,
		"ControlPlaneTaintKey": constants.LabelNodeRoleControlPlane, "DNSDomain": "cluster.local",
	})
	if err != nil {
		return fmt.Errorf("write kubeadm's manifests: %w", err)
	}
	return nil
}
