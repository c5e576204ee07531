package kubeadm

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/images"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/dns"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/proxy"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/kubelet"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/upgrade"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/uploadconfig"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/config"
)

// Version returns the version of Kubernetes in this program.
func Version() string {
	info, _ := debug.ReadBuildInfo()
	for _, m := range info.Deps {
		if m.Path == "k8s.io/kubernetes" {
			return m.Version
		}
	}
	return constants.CurrentKubernetesVersion.String()
}

// A Cluster is kubeadm's configuration of a cluster.
type Cluster struct{ *kubeadmapi.InitConfiguration }

// Config reads a configuration file of kubeadm.
func Config(text string) (Cluster, error) {
	c, err := config.BytesToInitConfiguration([]byte(text), true)
	if err != nil {
		return Cluster{}, fmt.Errorf("read kubeadm's configuration: %w", err)
	}
	return Cluster{c}, nil
}

// Fetch reads the configuration from the cluster's ConfigMaps, as `kubeadm upgrade` does. kubeadm reads the address of
// the API server from its static pod, which a lab does not have.
func Fetch(client kubernetes.Interface) (Cluster, error) {
	c, err := config.FetchInitConfigurationFromCluster(client, nil, "upgrade/config", false, false, true, true)
	if err != nil {
		return Cluster{}, fmt.Errorf("read kubeadm's configuration: %w", err)
	}
	at, err := netip.ParseAddrPort(c.ControlPlaneEndpoint)
	if err != nil {
		return Cluster{}, fmt.Errorf("read controlPlaneEndpoint of kubeadm's configuration: %w", err)
	}
	c.LocalAPIEndpoint.AdvertiseAddress = at.Addr().String()
	return Cluster{c}, nil
}

// KubeProxyImage returns the name of the image of kube-proxy.
func (c Cluster) KubeProxyImage() string {
	return images.GetKubernetesImage(constants.KubeProxy, &c.ClusterConfiguration)
}

// DNSImage returns the name of the image of CoreDNS.
func (c Cluster) DNSImage() string { return images.GetDNSImage(&c.ClusterConfiguration) }

// KubeProxy runs phase addon/kube-proxy.
func (c Cluster) KubeProxy(client kubernetes.Interface) error {
	if err := proxy.EnsureProxyAddon(&c.ClusterConfiguration, &c.LocalAPIEndpoint, client, "", io.Discard, false); err != nil {
		return fmt.Errorf("run kubeadm's phase addon/kube-proxy: %w", err)
	}
	return nil
}

// Init runs the phases of `kubeadm init` that make objects for DNS, kube-proxy and later upgrades.
func (c Cluster) Init(client kubernetes.Interface) error {
	err := errors.Join(uploadconfig.UploadConfiguration(c.InitConfiguration, client), kubelet.CreateConfigMap(&c.ClusterConfiguration, client))
	if err != nil {
		return fmt.Errorf("run kubeadm's phase upload-config: %w", err)
	}
	return c.Apply(client)
}

// Plan runs the checks of `kubeadm upgrade plan` and `apply` that look at DNS. It returns the version that kubeadm takes
// for CoreDNS's. ignored are names of checks, as in --ignore-preflight-errors.
func Plan(client kubernetes.Interface, ignored ...string) (dnsVersion string, err error) {
	names := sets.New[string]()
	for _, name := range ignored {
		names.Insert(strings.ToLower(name)) // as the flag does
	}
	if err := upgrade.RunCoreDNSMigrationCheck(client, names); err != nil {
		return "", fmt.Errorf("run kubeadm's checks before an upgrade: %w", err)
	}
	v, err := upgrade.NewKubeVersionGetter(client).DNSAddonVersion()
	if err != nil {
		return "", fmt.Errorf("ask kubeadm for the version of DNS: %w", err)
	}
	return v, nil
}

// Apply runs the phases addon/coredns and addon/kube-proxy of `kubeadm upgrade apply`, which are those of `kubeadm init`,
// too.
func (c Cluster) Apply(client kubernetes.Interface) error {
	if err := dns.EnsureDNSAddon(&c.ClusterConfiguration, client, "", io.Discard, false); err != nil {
		return fmt.Errorf("run kubeadm's phase addon/coredns: %w", err)
	}
	return c.KubeProxy(client)
}
