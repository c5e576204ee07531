package install

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/kube/loadbalancer"
	"github.com/fairway-net/fairway/internal/kube/objects"
)

// A loss is something that works on the cluster now, and that a change would end.
type loss struct {
	what   string   // that ends: "externalIPs of Services"
	of     []string // the objects that lose it; nil: the whole cluster
	remedy string   // what keeps it
}

func (l loss) String() string {
	return l.what + some(l.of)
}

// some returns the first names of a list, with their number.
func some(names []string) string {
	const shown = 3
	switch {
	case len(names) == 0:
		return ""
	case len(names) > shown:
		return fmt.Sprintf(": %s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return ": " + strings.Join(names, ", ")
}

// A state is what the programs of a cluster do for its objects.
type state struct {
	Settings      // of Fairway; the zero value: Fairway is not here
	proxy    bool // a kube-proxy serves Services, or can be started again
	coreDNS  bool // a Deployment coredns answers, or can be started again
}

// agents reports whether Fairway's agents run.
func (s state) agents() bool { return s.Values != nil }

func (s state) services() bool { return s.proxy || s.agents() }
func (s state) dns() bool      { return s.coreDNS || s.DNS }
func (s state) is(key string) bool {
	return s.Values[key] == yes
}

// externalIPs reports whether Services' externalIPs are served. kube-proxy always serves them.
func (s state) externalIPs() bool {
	return s.agents() && !s.is(keyExternalIPs) || !s.agents() && s.proxy
}

// weights reports whether somebody reads the weights of pods. Each component that contains the controller does.
func (s state) weights() bool {
	return hasController(s.Settings)
}

// A use is what the cluster's objects use.
type use struct {
	services, externalIPs, balanced, egress, weighted []string // Services, except the cluster's own
	policies                                          []string // NetworkPolicies and ClusterNetworkPolicies
	pods                                              []string // pods of others that are not in the host's network
}

// losses returns what the change from before to after ends.
func losses(before, after state, u *use) (all []loss) {
	lose := func(was, is bool, l loss, of []string) {
		if l.of = of; was && !is && len(of) > 0 {
			all = append(all, l)
		}
	}
	lose(before.services(), after.services(), loss{what: "addresses of Services, because no kube-proxy is here", remedy: "apply a kube-proxy first"}, u.services)
	lose(before.dns(), after.dns(), loss{what: "names, because Fairway's DNS is the only one", remedy: "apply a Deployment kube-system/coredns first"}, u.pods)
	lose(connectsPods(before.Values), connectsPods(after.Values), loss{what: "the pod network, so that pods cannot be deleted and new pods do not start", remedy: "install another CNI plugin and delete the pods"}, u.pods)
	lose(before.externalIPs(), after.externalIPs(), loss{what: "externalIPs of Services", remedy: "--refuse-external-ips false keeps them, true ends them"}, u.externalIPs)
	lose(givesAddresses(before.Settings), givesAddresses(after.Settings), loss{what: "announcements of load balancers' addresses", remedy: "keep the component load-balancer or edge"}, u.balanced)
	lose(before.is(keyPolicies), after.is(keyPolicies), loss{what: "enforcement of NetworkPolicies", remedy: "keep the component network-policy"}, u.policies)
	lose(before.is(keyEgress), after.is(keyEgress), loss{what: "egress addresses of Services", remedy: "keep the component egress"}, u.egress)
	lose(before.weights(), after.weights(), loss{what: "weights of pods", remedy: "keep the component controller"}, u.weighted)
	return all
}

// uses reads what the cluster's objects use.
func (i *Installer) uses(ctx context.Context) (*use, error) {
	u := &use{}
	services, err := i.API.List(ctx, "v1", "Service", "", "")
	if err != nil {
		return nil, err
	}
	for _, o := range services {
		s, err := typed[corev1.Service](&o)
		if err != nil {
			return nil, err
		}
		u.service(s, loadbalancer.HeldByBalancer(&o))
	}
	policies, err := list[networkingv1.NetworkPolicy](ctx, i.API, "networking.k8s.io/v1", "NetworkPolicy", "", "")
	if err != nil {
		return nil, err
	}
	for _, p := range policies {
		u.policies = append(u.policies, p.Namespace+"/"+p.Name)
	}
	wide, err := i.API.List(ctx, kube.ClusterNetworkPolicies.GroupVersion().String(), "ClusterNetworkPolicy", "", "")
	if err != nil {
		return nil, err
	}
	for _, p := range wide {
		u.policies = append(u.policies, p.GetName())
	}
	pods, err := list[corev1.Pod](ctx, i.API, "v1", "Pod", "", "")
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		if !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && !ofFairway(p) {
			u.pods = append(u.pods, p.Namespace+"/"+p.Name)
		}
	}
	return u, nil
}

// service adds a Service. held: Fairway's controller gave it its addresses.
func (u *use) service(s *corev1.Service, held bool) {
	name := s.Namespace + "/" + s.Name
	if s.Spec.ClusterIP != corev1.ClusterIPNone && name != "default/kubernetes" && name != "kube-system/kube-dns" {
		u.services = append(u.services, name)
	}
	if len(s.Spec.ExternalIPs) > 0 {
		u.externalIPs = append(u.externalIPs, name)
	}
	if held && len(s.Status.LoadBalancer.Ingress) > 0 {
		u.balanced = append(u.balanced, name)
	}
	if s.Annotations[kube.AnnotationEgress] != "" {
		u.egress = append(u.egress, name)
	}
	if s.Annotations[kube.AnnotationWeights] == yes {
		u.weighted = append(u.weighted, name)
	}
}

// with returns the state of a cluster that runs Fairway with s, and the other programs that do Fairway's work, or would
// do it again if Fairway let them.
func (f *Facts) with(s Settings, inv *inventory) state {
	return state{
		Settings: s,
		proxy:    f.KubeProxy != nil || f.Embedded != "",
		coreDNS:  replicas(f.CoreDNS) > 0 || f.CoreDNS != nil && inv.CoreDNS > 0,
	}
}

// lossOf returns what the change to the settings to ends. accepted lists settings whose losses the user has chosen.
func (i *Installer) lossOf(ctx context.Context, inv *inventory, f *Facts, to Settings, accepted ...string) ([]loss, error) {
	u, err := i.uses(ctx)
	if err != nil {
		return nil, err
	}
	if slices.Contains(accepted, keyExternalIPs) {
		u.externalIPs = nil
	}
	return losses(f.with(f.now(), inv), f.with(to, inv), u), nil
}

// refuseLosses prints what a change ends, and refuses it unless Force is set.
func (i *Installer) refuseLosses(all []loss) error {
	for _, l := range all {
		i.say("  %-6s  %s", end, l)
	}
	if len(all) == 0 || i.Force {
		return nil
	}
	var parts []string
	for _, l := range all {
		parts = append(parts, l.String()+" ("+l.remedy+")")
	}
	return fmt.Errorf("refused: this ends %s [--force ends them]", strings.Join(parts, "; "))
}

// ofFairway reports whether a pod belongs to a workload of Fairway.
func ofFairway(p corev1.Pod) bool {
	return p.Namespace == kubeSystem && slices.ContainsFunc(fairwayWorkloads, func(r objects.Ref) bool { return owns(r, &p) })
}

// fairwayWorkloads are the workloads of deploy/.
var fairwayWorkloads = []objects.Ref{
	workload("DaemonSet", agentName), workload("DaemonSet", "fairway-speaker"), workload("DaemonSet", "fairway-gateway"),
	workload("DaemonSet", "fairway-cleanup"),
	workload("Deployment", "fairway-dns"), workload("Deployment", "fairway-controller"),
}

func workload(kind, name string) objects.Ref {
	return objects.Ref{APIVersion: "apps/v1", Kind: kind, Namespace: kubeSystem, Name: name}
}
