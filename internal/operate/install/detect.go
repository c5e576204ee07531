package install

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// An API is the part of the API server that this package uses. *objects.Client implements it.
type API interface {
	Host() string
	Version(context.Context) (string, error)
	Get(context.Context, objects.Ref) (*unstructured.Unstructured, error)
	List(ctx context.Context, apiVersion, kind, namespace, selector string) ([]unstructured.Unstructured, error)
	Apply(ctx context.Context, o *unstructured.Unstructured, dryRun bool) (*unstructured.Unstructured, error)
	Put(context.Context, *unstructured.Unstructured) (*unstructured.Unstructured, error)
	Patch(context.Context, objects.Ref, []byte) error
	Delete(context.Context, objects.Ref) error
}

const (
	kubeSystem = "kube-system"
	agentName  = "fairway-agent" // the name of the DaemonSet and of its ConfigMap
)

// A Finding is a fact with its source.
type Finding struct{ Value, From string }

// Facts describe a cluster.
type Facts struct {
	Version      string // of the API server
	Distribution string // kubeadm, k3s, kind, …; empty: unknown
	Nodes        []corev1.Node
	APIServer    Finding
	ClusterCIDR  Finding
	ServiceCIDRs []netip.Prefix
	DNS          Finding // addresses of the Service kube-dns, separated by commas; empty: the Service does not exist
	CoreDNS      *appsv1.Deployment
	KubeProxy    *appsv1.DaemonSet
	Embedded     string // where a kube-proxy runs inside another program; empty: nowhere
	CNI          Finding
	Live         map[string]string // settings of an existing agent; nil: none exists
	LiveDNS      bool              // Fairway's DNS server exists
	Components   []string          // components of Fairway that exist
	Rival        Finding           // another program that gives addresses to load balancers

	kubeProxyConf  string // data of the ConfigMap kube-proxy
	kubeProxyServe string
}

// read fetches one typed object. It returns nil if the object does not exist.
func read[T any](ctx context.Context, api API, apiVersion, kind, namespace, name string) (*T, error) {
	u, err := api.Get(ctx, objects.Ref{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name})
	if err != nil || u == nil {
		return nil, err
	}
	return typed[T](u)
}

func typed[T any](u *unstructured.Unstructured) (*T, error) {
	o := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return nil, fmt.Errorf("read %s: %w", objects.RefOf(u), err)
	}
	return o, nil
}

func list[T any](ctx context.Context, api API, apiVersion, kind, namespace, selector string) ([]T, error) {
	all, err := api.List(ctx, apiVersion, kind, namespace, selector)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(all))
	for i := range all {
		o, err := typed[T](&all[i])
		if err != nil {
			return nil, err
		}
		out[i] = *o
	}
	return out, nil
}

// Detect collects the facts of the cluster.
func Detect(ctx context.Context, api API) (*Facts, error) {
	f := &Facts{}
	for _, step := range []func(context.Context, API) error{
		f.version, f.nodes, f.kubeProxy, f.settings, f.cni, f.rival, f.services, f.dns, f.podCIDR, f.server,
	} {
		if err := step(ctx, api); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *Facts) version(ctx context.Context, api API) (err error) {
	f.Version, err = api.Version(ctx)
	return err
}

func (f *Facts) nodes(ctx context.Context, api API) (err error) {
	if f.Nodes, err = list[corev1.Node](ctx, api, "v1", "Node", "", ""); err != nil {
		return err
	}
	for _, n := range f.Nodes {
		id, v := n.Spec.ProviderID, n.Status.NodeInfo.KubeletVersion
		for _, d := range []struct {
			name string
			is   bool
		}{
			{"kind", strings.HasPrefix(id, "kind://")},
			{"k3s", strings.HasPrefix(id, "k3s://") || strings.Contains(v, "+k3s")},
			{"rke2", strings.Contains(v, "+rke2")},
			{"EKS", strings.Contains(v, "-eks-")},
			{"GKE", strings.Contains(v, "-gke.")},
			{"minikube", n.Labels["minikube.k8s.io/name"] != ""},
		} {
			if d.is && f.Distribution == "" {
				f.Distribution = d.name
			}
		}
	}
	return nil
}

// kubeProxy looks for a kube-proxy: a DaemonSet, as kubeadm makes it, or one inside k3s.
func (f *Facts) kubeProxy(ctx context.Context, api API) (err error) {
	if f.KubeProxy, err = read[appsv1.DaemonSet](ctx, api, "apps/v1", "DaemonSet", kubeSystem, "kube-proxy"); err != nil {
		return err
	}
	conf, err := read[corev1.ConfigMap](ctx, api, "v1", "ConfigMap", kubeSystem, "kube-proxy")
	if err != nil {
		return err
	}
	if conf != nil {
		f.kubeProxyConf, f.kubeProxyServe = conf.Data["config.conf"], conf.Data["kubeconfig.conf"]
	}
	if f.KubeProxy != nil || f.Distribution != "k3s" {
		return nil
	}
	for _, n := range f.Nodes {
		if _, control := n.Labels["node-role.kubernetes.io/control-plane"]; !control {
			continue
		}
		if args := n.Annotations["k3s.io/node-args"]; !strings.Contains(args, "disable-kube-proxy") {
			f.Embedded = "k3s on " + n.Name
		}
	}
	return nil
}

// plugins maps the name of a DaemonSet to its CNI plugin.
var plugins = map[string]string{
	"kube-flannel-ds": "flannel", "kube-flannel": "flannel", "calico-node": "Calico", "canal": "Canal", "cilium": "Cilium",
	"weave-net": "Weave Net", "kindnet": "kindnet", "aws-node": "Amazon VPC CNI", "azure-cni": "Azure CNI", "kube-router": "kube-router",
	"antrea-agent": "Antrea", "ovnkube-node": "OVN-Kubernetes", "kube-ovn-cni": "Kube-OVN", "netd": "GKE netd",
}

func (f *Facts) cni(ctx context.Context, api API) error {
	all, err := list[appsv1.DaemonSet](ctx, api, "apps/v1", "DaemonSet", "", "")
	if err != nil {
		return err
	}
	for _, d := range all {
		if name, ok := plugins[d.Name]; ok {
			f.CNI = Finding{name, "DaemonSet " + d.Namespace + "/" + d.Name}
			return nil
		}
	}
	for _, n := range f.Nodes {
		if n.Annotations["flannel.alpha.coreos.com/backend-type"] != "" {
			f.CNI = Finding{"flannel", "annotation of node " + n.Name}
			return nil
		}
	}
	f.CNI = f.unknownCNI()
	return nil
}

// unknownCNI returns a finding for an unknown plugin if a node is Ready without Fairway's plugin.
func (f *Facts) unknownCNI() Finding {
	if connectsPods(f.Live) {
		return Finding{}
	}
	for _, n := range f.Nodes {
		if ready(n) {
			return Finding{"one that this program does not know", "node " + n.Name + " is Ready"}
		}
	}
	return Finding{}
}

func ready(n corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// rivals are the labels of programs that give addresses to Services of type LoadBalancer and announce them. A label
// without a value may have any.
var rivals = []struct{ name, kind, label, value string }{
	{"MetalLB", "DaemonSet", "app", "metallb"},
	{"MetalLB", "DaemonSet", "app.kubernetes.io/name", "metallb"},
	{"MetalLB", "Deployment", "app", "metallb"},
	{"MetalLB", "Deployment", "app.kubernetes.io/name", "metallb"},
	{"kube-vip", "DaemonSet", "app.kubernetes.io/name", "kube-vip-ds"},
	{"kube-vip", "Deployment", "app", "kube-vip-cloud-provider"},
	{"K3s' ServiceLB", "DaemonSet", "svccontroller.k3s.cattle.io/svcname", ""},
}

// rival looks for another program that gives addresses to load balancers.
func (f *Facts) rival(ctx context.Context, api API) error {
	all := map[string][]unstructured.Unstructured{}
	for _, kind := range []string{"DaemonSet", "Deployment"} {
		var err error
		if all[kind], err = api.List(ctx, "apps/v1", kind, "", ""); err != nil {
			return err
		}
	}
	for _, r := range rivals {
		for _, o := range all[r.kind] {
			if value, ok := o.GetLabels()[r.label]; ok && (r.value == "" || value == r.value) {
				f.Rival = Finding{r.name, r.kind + " " + o.GetNamespace() + "/" + o.GetName()}
				return nil
			}
		}
	}
	return nil
}

// now returns the settings of Fairway that the cluster runs with.
func (f *Facts) now() Settings {
	return Settings{Components: f.Components, DNS: f.LiveDNS, Values: f.Live}
}

// services finds the ranges of ClusterIPs: ServiceCIDR objects since Kubernetes 1.33, else kubeadm's configuration.
func (f *Facts) services(ctx context.Context, api API) error {
	all, err := list[networkingv1.ServiceCIDR](ctx, api, "networking.k8s.io/v1", "ServiceCIDR", "", "")
	if err != nil {
		return err
	}
	var texts []string
	for _, c := range all {
		texts = append(texts, c.Spec.CIDRs...)
	}
	if len(texts) == 0 {
		k, err := f.kubeadm(ctx, api)
		if err != nil {
			return err
		}
		texts = strings.Split(k.Networking.ServiceSubnet, ",")
	}
	for _, t := range texts {
		if p, err := netip.ParsePrefix(strings.TrimSpace(t)); err == nil {
			f.ServiceCIDRs = append(f.ServiceCIDRs, p)
		}
	}
	return nil
}

// A clusterConfiguration is kubeadm's record of a cluster.
type clusterConfiguration struct {
	ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
	Networking           struct {
		PodSubnet     string `json:"podSubnet"`
		ServiceSubnet string `json:"serviceSubnet"`
	} `json:"networking"`
}

func (f *Facts) kubeadm(ctx context.Context, api API) (k clusterConfiguration, err error) {
	conf, err := read[corev1.ConfigMap](ctx, api, "v1", "ConfigMap", kubeSystem, "kubeadm-config")
	if err != nil || conf == nil {
		return k, err
	}
	if f.Distribution == "" {
		f.Distribution = "kubeadm"
	}
	if err := yaml.Unmarshal([]byte(conf.Data["ClusterConfiguration"]), &k); err != nil {
		return k, fmt.Errorf("read ConfigMap kubeadm-config: %w", err)
	}
	return k, nil
}

func (f *Facts) dns(ctx context.Context, api API) (err error) {
	svc, err := read[corev1.Service](ctx, api, "v1", "Service", kubeSystem, "kube-dns")
	if err != nil {
		return err
	}
	if svc != nil {
		f.DNS = Finding{strings.Join(svc.Spec.ClusterIPs, ","), "Service kube-system/kube-dns"}
	}
	if f.CoreDNS, err = read[appsv1.Deployment](ctx, api, "apps/v1", "Deployment", kubeSystem, "coredns"); err != nil {
		return err
	}
	ours, err := api.Get(ctx, workload("Deployment", "fairway-dns"))
	f.LiveDNS = ours != nil
	return err
}

// settings reads the settings of an existing agent, with changes by others.
func (f *Facts) settings(ctx context.Context, api API) error {
	conf, err := read[corev1.ConfigMap](ctx, api, "v1", "ConfigMap", kubeSystem, agentName)
	if err == nil && conf != nil {
		f.Live = conf.Data
	}
	return err
}

var podCIDRArg = regexp.MustCompile(`--cluster-cidr[= ]+"?([0-9a-fA-F.:/,]+)`)

// podCIDR reads the pods' addresses from where each kind of cluster keeps them.
func (f *Facts) podCIDR(ctx context.Context, api API) error {
	k, err := f.kubeadm(ctx, api)
	if err != nil {
		return err
	}
	var proxy struct {
		ClusterCIDR string `json:"clusterCIDR"`
	}
	_ = yaml.Unmarshal([]byte(f.kubeProxyConf), &proxy) // an unreadable configuration gives no answer
	manager, err := f.managerCIDR(ctx, api)
	if err != nil {
		return err
	}
	for _, found := range []Finding{
		{k.Networking.PodSubnet, "ConfigMap kube-system/kubeadm-config"},
		{proxy.ClusterCIDR, "ConfigMap kube-system/kube-proxy"},
		{manager, "the controller manager's flags"},
		f.k3sCIDR(),
	} {
		if found.Value != "" {
			f.ClusterCIDR = found
			return nil
		}
	}
	return nil
}

func (f *Facts) managerCIDR(ctx context.Context, api API) (string, error) {
	pods, err := list[corev1.Pod](ctx, api, "v1", "Pod", kubeSystem, "component=kube-controller-manager")
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		for _, c := range p.Spec.Containers {
			if m := podCIDRArg.FindStringSubmatch(strings.Join(append(c.Command, c.Args...), "\n")); m != nil {
				return m[1], nil
			}
		}
	}
	return "", nil
}

// k3sCIDR returns k3s's flag, as its nodes record it, or its default.
func (f *Facts) k3sCIDR() Finding {
	if f.Distribution != "k3s" {
		return Finding{}
	}
	for _, n := range f.Nodes {
		args := strings.NewReplacer(`","`, " ", `["`, "", `"]`, "").Replace(n.Annotations["k3s.io/node-args"])
		if m := podCIDRArg.FindStringSubmatch(args); m != nil {
			return Finding{m[1], "k3s's flags on node " + n.Name}
		}
	}
	return Finding{"10.42.0.0/16", "k3s's default"}
}

// server finds a URL of the API server that nodes reach without a Service.
func (f *Facts) server(ctx context.Context, api API) error {
	k, err := f.kubeadm(ctx, api)
	if err != nil {
		return err
	}
	info, err := read[corev1.ConfigMap](ctx, api, "v1", "ConfigMap", "kube-public", "cluster-info")
	if err != nil {
		return err
	}
	var public string
	if info != nil {
		public = info.Data["kubeconfig"]
	}
	slices, err := list[discoveryv1.EndpointSlice](ctx, api, "discovery.k8s.io/v1", "EndpointSlice", "default", "kubernetes.io/service-name=kubernetes")
	if err != nil {
		return err
	}
	endpoint := ""
	if k.ControlPlaneEndpoint != "" {
		endpoint = "https://" + k.ControlPlaneEndpoint
	}
	for _, found := range []Finding{
		{serverOf(f.kubeProxyServe), "ConfigMap kube-system/kube-proxy"},
		{endpoint, "ConfigMap kube-system/kubeadm-config"},
		{serverOf(public), "ConfigMap kube-public/cluster-info"},
		{firstEndpoint(slices), "endpoints of Service default/kubernetes"},
		{api.Host(), "the kubeconfig"},
	} {
		if f.checkServer(found.Value) == nil {
			f.APIServer = found
			return nil
		}
	}
	return nil
}

// serverOf returns the first server of a kubeconfig.
func serverOf(text string) string {
	var file struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
			} `json:"cluster"`
		} `json:"clusters"`
	}
	if yaml.Unmarshal([]byte(text), &file) != nil || len(file.Clusters) == 0 {
		return ""
	}
	return file.Clusters[0].Cluster.Server
}

func firstEndpoint(slices []discoveryv1.EndpointSlice) string {
	for _, s := range slices {
		for _, e := range s.Endpoints {
			for _, p := range s.Ports {
				if len(e.Addresses) > 0 && p.Port != nil {
					if a, err := netip.ParseAddr(e.Addresses[0]); err == nil {
						return "https://" + netip.AddrPortFrom(a, uint16(*p.Port)).String()
					}
				}
			}
		}
	}
	return ""
}

// checkServer returns why a URL cannot be the agents' API server, or nil.
func (f *Facts) checkServer(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return fmt.Errorf("%q is not a URL https://HOST:PORT", text)
	}
	a, err := netip.ParseAddr(u.Hostname())
	switch {
	case strings.HasSuffix(u.Hostname(), ".invalid"):
		return fmt.Errorf("%s is the placeholder of deploy/agent/config.yaml", text)
	case strings.HasSuffix(u.Hostname(), ".svc") || strings.Contains(u.Hostname(), ".svc."):
		return fmt.Errorf("%s is a Service's name: the agents must reach the API server without any Service", text)
	case err != nil:
		return nil // a name, which the nodes must resolve
	case slices.ContainsFunc(f.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }):
		return fmt.Errorf("%s is a ClusterIP: the agents are what makes that address work", text)
	case a.IsLoopback():
		return fmt.Errorf("%s is a loopback address, which nodes do not share", text)
	}
	return nil
}
