package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app"

	"github.com/fairway-net/fairway/lab/apiclient"
)

// RunKubelet runs the node's kubelet in the calling process until ctx is done. The process must be inside the node. The
// kubelet starts when the API server answers.
func (c Config) RunKubelet(ctx context.Context) error {
	if err := c.writeKubeletConfig(); err != nil {
		return err
	}
	if err := serveImages(ctx); err != nil {
		return err
	}
	// A kubelet that finds no API server waits for seconds before it tries again to register its node.
	if err := c.waitAPI(ctx); err != nil {
		return err
	}
	cmd := app.NewKubeletCommand(ctx)
	cmd.SetArgs([]string{
		"--config=" + c.path("kubelet.json"),
		"--kubeconfig=" + c.Kubeconfig,
		"--hostname-override=" + c.Name,
		"--node-ip=" + joinAddrs(c.Addresses),
		"--root-dir=/var/lib/kubelet",
		"--cert-dir=/var/lib/kubelet/pki",
		"--node-labels=" + c.Labels,
	})
	if err := cmd.ExecuteContext(ctx); err != nil {
		return fmt.Errorf("run kubelet: %w", err)
	}
	return nil
}

// waitAPI waits until the API server answers the kubelet's first request. The request needs no roles, which the API
// server creates later.
func (c Config) waitAPI(ctx context.Context) error {
	_, client, err := apiclient.New(c.Kubeconfig)
	if err != nil {
		return err
	}
	return apiclient.Poll(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		_, err := client.CoreV1().Nodes().Get(ctx, c.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (c Config) writeKubeletConfig() error {
	data, err := json.MarshalIndent(c.kubeletConfig(), "", "  ")
	if err != nil {
		return fmt.Errorf("encode kubelet's configuration: %w", err)
	}
	if err := os.WriteFile(c.path("kubelet.json"), data, 0o644); err != nil {
		return fmt.Errorf("write kubelet's configuration: %w", err)
	}
	return nil
}

func (c Config) kubeletConfig() *kubeletconfig.KubeletConfiguration {
	yes, no := true, false
	var never, usual int32 = 100, 0
	dns := make([]string, len(c.DNS))
	for i, a := range c.DNS {
		dns[i] = a.String()
	}
	k := &kubeletconfig.KubeletConfiguration{
		TypeMeta:                 metav1.TypeMeta{APIVersion: "kubelet.config.k8s.io/v1beta1", Kind: "KubeletConfiguration"},
		ContainerRuntimeEndpoint: "unix://" + containerdSocket,
		ImageServiceEndpoint:     "unix://" + imageSocket,
		TLSCertFile:              c.PKI + "/kubelet-" + c.Name + ".crt",
		TLSPrivateKeyFile:        c.PKI + "/kubelet-" + c.Name + ".key",
		ClusterDomain:            "cluster.local",
		ClusterDNS:               dns,
		PodLogsDir:               "/var/log/pods",
		VolumePluginDir:          "/var/lib/kubelet/volumeplugins",
		SerializeImagePulls:      &no,
	}
	resolv := c.path("resolv.conf")
	k.ResolverConfig = &resolv
	k.Authentication.Anonymous.Enabled = &no
	k.Authentication.Webhook.Enabled = &yes
	k.Authentication.X509.ClientCAFile = c.PKI + "/ca.crt"
	k.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
	// The nodes share the machine's cgroups, so pods get cgroups below the node's. That needs cgroupsPerQOS: without
	// it, runc creates the pods' cgroups at the root.
	k.CgroupDriver = "cgroupfs"
	k.CgroupRoot = c.Cgroup
	k.CgroupsPerQOS = &yes
	k.EnforceNodeAllocatable = []string{"none"} // the kubelet would replace an empty list by the default
	k.FailCgroupV1 = &no
	k.FailSwapOn = &no
	// Without CAP_SYS_RESOURCE the kubelet may not lower its score, and its two attempts fail. The lab must not outlive
	// the rest of the machine either.
	k.OOMScoreAdj = &usual
	// A nearly full disk of the machine is no reason to evict the lab's pods. It is also no reason to delete images
	// that the lab cannot fetch again.
	k.ImageGCHighThresholdPercent = &never
	k.EvictionHard = map[string]string{"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}
	return k
}

func joinAddrs(addrs []netip.Addr) string {
	s := make([]string, len(addrs))
	for i, a := range addrs {
		s[i] = a.String()
	}
	return strings.Join(s, ",")
}
