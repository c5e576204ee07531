package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/text"
)

// A Workload is a Deployment or a DaemonSet.
type Workload struct {
	Name              string
	Wanted, Available int // pods
	Command           []string
}

// Fairway reports whether the workload runs this program.
func (w *Workload) Fairway() bool {
	return len(w.Command) > 0 && strings.HasSuffix(w.Command[0], "fairway")
}

// Parts are the facts of a cluster about the parts of Fairway that are not agents, and about their surroundings.
type Parts struct {
	// Deployments and DaemonSets of the agents' namespace, by name.
	Deployments, DaemonSets map[string]*Workload
	// Plugins are the names of all DaemonSets of the cluster.
	Plugins []string
	// DNSService is the Service with the cluster's DNS address, NAMESPACE/NAME; empty: there is none. DNSReady is the number
	// of its ready endpoints.
	DNSService string
	DNSReady   int
	// StaleDNS are Fairway's DNS pods that serve a previous Corefile. UnaskedDNS are those whose metrics cannot be read.
	StaleDNS, UnaskedDNS []string
	// Leader is the controller that works, and LeaderSeen the time of its last sign.
	Leader     string
	LeaderSeen time.Time
	// EdgeVoter is the edge that has the third vote of two edges; empty: unknown.
	EdgeVoter string
	Settings  map[string]string // of the agents; nil: there is no ConfigMap
	Policies  int               // NetworkPolicies and ClusterNetworkPolicies
	// Unread has a sentence for each fact that could not be read, by the name of the fact.
	Unread map[string]string
}

// The names of facts in Parts.Unread.
const (
	FactWorkloads = "workloads"
	FactDNS       = "dns"
	FactLeader    = "leader"
	FactSettings  = "settings"
	FactPolicies  = "policies"
)

// Parts reads the API server once, and asks each DNS pod of Fairway.
func (a *Agents) Parts(ctx context.Context) *Parts {
	p := &Parts{Deployments: map[string]*Workload{}, DaemonSets: map[string]*Workload{}, Unread: map[string]string{}}
	for _, fact := range []struct {
		name string
		read func(context.Context, *Parts) error
	}{
		{FactWorkloads, a.workloads}, {FactDNS, a.dnsService}, {FactDNS, a.dnsPods},
		{FactLeader, a.leases}, {FactSettings, a.settings}, {FactPolicies, a.policies},
	} {
		if err := fact.read(ctx, p); err != nil {
			p.Unread[fact.name] = unreadText(err)
		}
	}
	return p
}

// unreadText describes the error of a request: not allowed, or no answer.
func unreadText(err error) string {
	var answer apierrors.APIStatus
	if apierrors.IsForbidden(err) && errors.As(err, &answer) && answer.Status().Details != nil {
		return "your user may not read " + answer.Status().Details.Kind
	}
	return text.RequestError(err).Error()
}

func (a *Agents) workloads(ctx context.Context, p *Parts) error {
	cached := metav1.ListOptions{ResourceVersion: "0"}
	deployments, err := a.client.AppsV1().Deployments(a.namespace).List(ctx, cached)
	if err != nil {
		return err
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		p.Deployments[d.Name] = &Workload{
			Name: d.Name, Wanted: int(ptr.Deref(d.Spec.Replicas, 1)),
			Available: int(d.Status.AvailableReplicas), Command: commandOf(d.Spec.Template.Spec),
		}
	}
	sets, err := a.client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, cached)
	if err != nil {
		return err
	}
	for i := range sets.Items {
		d := &sets.Items[i]
		p.Plugins = append(p.Plugins, d.Name)
		if d.Namespace == a.namespace {
			p.DaemonSets[d.Name] = daemonSet(d)
		}
	}
	return nil
}

func daemonSet(d *appsv1.DaemonSet) *Workload {
	return &Workload{
		Name: d.Name, Wanted: int(d.Status.DesiredNumberScheduled),
		Available: int(d.Status.NumberAvailable), Command: commandOf(d.Spec.Template.Spec),
	}
}

// commandOf returns the command of a pod's first container.
func commandOf(s corev1.PodSpec) []string {
	if len(s.Containers) == 0 {
		return nil
	}
	return slices.Concat(s.Containers[0].Command, s.Containers[0].Args)
}

// dnsLabel is on the Service with the cluster's DNS address, and on its pods, in all distributions.
const dnsLabel = "k8s-app=kube-dns"

func (a *Agents) dnsService(ctx context.Context, p *Parts) error {
	found, err := a.client.CoreV1().Services(a.namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0", LabelSelector: dnsLabel})
	if err != nil {
		return err
	}
	if len(found.Items) == 0 {
		return nil
	}
	p.DNSService = a.namespace + "/" + found.Items[0].Name
	slices, err := a.client.DiscoveryV1().EndpointSlices(a.namespace).List(ctx, metav1.ListOptions{
		ResourceVersion: "0", LabelSelector: discoveryv1.LabelServiceName + "=" + found.Items[0].Name,
	})
	if err != nil {
		return err
	}
	pods := map[string]bool{}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if ptr.Deref(e.Conditions.Ready, true) && len(e.Addresses) > 0 {
				pods[podOrAddress(e)] = true // a pod with two families is in two slices
			}
		}
	}
	p.DNSReady = len(pods)
	return nil
}

func podOrAddress(e discoveryv1.Endpoint) string {
	if e.TargetRef != nil && e.TargetRef.Name != "" {
		return e.TargetRef.Name
	}
	return e.Addresses[0]
}

// dnsPods asks each running DNS pod of Fairway whether it serves the current Corefile.
func (a *Agents) dnsPods(ctx context.Context, p *Parts) error {
	pods, err := a.client.CoreV1().Pods(a.namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0", LabelSelector: dnsLabel})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range pods.Items {
		o := &pods.Items[i]
		w := Workload{Command: commandOf(o.Spec)}
		if !w.Fairway() || o.Status.Phase != corev1.PodRunning || o.DeletionTimestamp != nil {
			continue
		}
		wg.Go(func() {
			stale, err := a.staleCorefile(ctx, o)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				p.UnaskedDNS = append(p.UnaskedDNS, o.Name)
			case stale:
				p.StaleDNS = append(p.StaleDNS, o.Name)
			}
		})
	}
	wg.Wait()
	slices.Sort(p.StaleDNS)
	slices.Sort(p.UnaskedDNS)
	return nil
}

// dnsMetricsPort is the port of the plugin prometheus.
const dnsMetricsPort = 9153

// staleCorefile asks a pod for its metric fairway_dns_corefile_stale.
func (a *Agents) staleCorefile(ctx context.Context, o *corev1.Pod) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	data, err := a.client.CoreV1().Pods(o.Namespace).ProxyGet("http", o.Name, strconv.Itoa(dnsMetricsPort), "/metrics", nil).DoRaw(ctx)
	if err != nil {
		return false, err
	}
	const metric = "fairway_dns_corefile_stale "
	for line := range bytes.Lines(data) {
		if value, ok := bytes.CutPrefix(line, []byte(metric)); ok {
			return string(bytes.TrimSpace(value)) != "0", nil
		}
	}
	return false, fmt.Errorf("the pod has no metric %s", strings.TrimSpace(metric))
}

func (a *Agents) leases(ctx context.Context, p *Parts) error {
	for name, set := range map[string]func(holder string, renewed time.Time){
		"fairway-controller": func(holder string, renewed time.Time) { p.Leader, p.LeaderSeen = holder, renewed },
		"fairway-edge-vote": func(holder string, renewed time.Time) {
			if time.Since(renewed) < time.Minute {
				p.EdgeVoter = holder
			}
		},
	} {
		l, err := a.client.CoordinationV1().Leases(a.namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return err
		case l.Spec.RenewTime != nil:
			set(ptr.Deref(l.Spec.HolderIdentity, ""), l.Spec.RenewTime.Time)
		}
	}
	return nil
}

func (a *Agents) settings(ctx context.Context, p *Parts) error {
	conf, err := a.client.CoreV1().ConfigMaps(a.namespace).Get(ctx, "fairway-agent", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		p.Settings = conf.Data
	}
	return err
}

// policies counts policies without reading all of them.
func (a *Agents) policies(ctx context.Context, p *Parts) error {
	few := metav1.ListOptions{Limit: 1}
	all, err := a.client.NetworkingV1().NetworkPolicies(metav1.NamespaceAll).List(ctx, few)
	if err != nil {
		return err
	}
	p.Policies = len(all.Items) + int(ptr.Deref(all.RemainingItemCount, 0))
	wide, err := a.custom.Resource(ClusterNetworkPolicies).List(ctx, few)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		p.Policies += len(wide.Items) + int(ptr.Deref(wide.GetRemainingItemCount(), 0))
	}
	return err
}
