package loadbalancer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/text"
)

// Announced are the load-balancer addresses of a cluster, seen with a kubeconfig.
type Announced struct {
	client           kubernetes.Interface
	custom           dynamic.Interface
	namespace, class string
}

// ConnectAnnounced makes a client. It sends nothing yet. namespace is the namespace of the metallb.io objects, and
// class is the loadBalancerClass of our Services; empty: the Services without a class.
func ConnectAnnounced(c kube.Connection, namespace, class string) (*Announced, error) {
	client, custom, err := kube.ConnectBoth(c)
	if err != nil {
		return nil, err
	}
	return &Announced{client, custom, namespace, class}, nil
}

// Report reads the API server once. With names (NAMESPACE/NAME), it reports only these Services, and the Services that
// share addresses with them.
func (a *Announced) Report(ctx context.Context, names ...string) (announce.Overview, error) {
	var only []api.Name
	for _, message := range names {
		name, err := api.ParseName(message)
		if err != nil {
			return announce.Overview{}, err
		}
		only = append(only, name)
	}
	s := kube.New(kube.Config{Client: a.client, Custom: a.custom, LoadBalancerNamespace: a.namespace})
	var l lists
	in, pending, outside := a.input(ctx, &l, s)
	held := a.holdings(ctx, &l, s)
	standings, problems := a.states(ctx, &l, s, in.Nodes)
	problems = append(problems, a.misplaced(ctx, &l)...)
	if l.err != nil {
		return announce.Overview{}, l.err
	}
	if len(only) > 0 {
		in.Services = announce.Related(in.Services, only)
		pending = slices.DeleteFunc(pending, func(p announce.Pending) bool { return !slices.Contains(only, p.Name) })
	}
	a.explainPending(ctx, pending)
	slices.SortFunc(pending, func(a, b announce.Pending) int { return a.Name.Compare(b.Name) })
	all := announce.Report(in, announce.Said{Held: held, Standings: standings}, pending)
	all = append(all, outside.reports(only)...)
	return announce.Overview{Addresses: all, Speakers: standings, Problems: problems}, nil
}

// noController is the reason of Services without an address in a cluster without Fairway's controller.
const noController = "Fairway's controller, which gives addresses, does not run here [fairway upgrade --component load-balancer, or servicelb]"

// explainPending sets the reason of Services about which no controller says anything if there is no controller. Without
// the right to list Deployments the reason stays open.
func (a *Announced) explainPending(ctx context.Context, pending []announce.Pending) {
	if !slices.ContainsFunc(pending, func(p announce.Pending) bool { return p.Reason == "" }) {
		return
	}
	list, err := a.client.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=fairway-controller", Limit: 1})
	if err != nil || len(list.Items) > 0 {
		return
	}
	for i := range pending {
		pending[i].Reason = cmp.Or(pending[i].Reason, noController)
	}
}

// Stranded reads the API server once, and returns the addresses of node that no other node may announce.
func (a *Announced) Stranded(ctx context.Context, node string) ([]announce.StrandedAddress, error) {
	s := kube.New(kube.Config{Client: a.client, Custom: a.custom, LoadBalancerNamespace: a.namespace})
	var l lists
	in, _, _ := a.input(ctx, &l, s)
	held := a.holdings(ctx, &l, s)
	if l.err != nil {
		return nil, l.err
	}
	return announce.Stranded(in, held, node), nil
}

// input reads the objects that speakers decide by. pending are Services without an address, and outside the addresses of
// balancers outside of the cluster.
func (a *Announced) input(ctx context.Context, l *lists, s *kube.Store) (in announce.BGPInput, pending []announce.Pending, outside outsideAddrs) {
	in = announce.BGPInput{
		Input: announce.Input{
			Pools: allOf(ctx, l, metallbKind(s, "ipaddresspools", convertPool)),
			L2:    allOf(ctx, l, metallbKind(s, "l2advertisements", convertL2Advertisement)),
		},
		Advertisements: allOf(ctx, l, metallbKind(s, "bgpadvertisements", convertBGPAdvertisement)),
		Peers:          allOf(ctx, l, metallbKind(s, "bgppeers", convertBGPPeer)),
		BFDProfiles:    allOf(ctx, l, metallbKind(s, "bfdprofiles", convertBFDProfile)),
		Communities:    allOf(ctx, l, metallbKind(s, "communities", convertCommunity)),
		// Secrets and neighbours are known to the speakers only. Assume that they are right: if not, a
		// ConfigurationState reports it.
		Password:  func(string) (string, bool) { return "", true },
		Unserved:  func(*announce.Service) string { return "" },
		Neighbour: func(device string) netip.Addr { return netip.MustParseAddr("fe80::1").WithZone(device) },
	}
	outside = outsideAddrs{}
	in.Services = allOf(ctx, l, kube.Kind[*corev1.Service, announce.Service]{
		Name: "services", Client: kube.From(a.client.CoreV1().Services(metav1.NamespaceAll)),
		Trim: func(o *corev1.Service) *announce.Service {
			v := convertBalanced(o, a.class)
			if v != nil && len(o.Status.LoadBalancer.Ingress) == 0 {
				pending = append(pending, announce.Pending{Name: v.Name, Reason: missingAddress(o.Status.Conditions)})
			}
			if v != nil {
				outside.add(v.Name, o.Status.LoadBalancer.Ingress)
			}
			return v
		},
	})
	nodes := allOf(ctx, l, kube.Kind[*corev1.Node, announce.Node]{Name: "nodes", Client: kube.From(a.client.CoreV1().Nodes()), Trim: convertAnnounceNode})
	slices.SortFunc(nodes, func(a, b *announce.Node) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		in.Nodes = append(in.Nodes, *n)
	}
	of := map[api.Name][]*service.Slice{}
	for _, one := range allOf(ctx, l, kube.SlicesKind(a.client)) {
		of[one.Service] = append(of[one.Service], one)
	}
	in.Endpoints = func(name api.Name) announce.Endpoints { return announce.EndpointsOf(of[name]) }
	in.LocalEndpoints = func(api.Name, bool) int { return 0 } // the number of endpoints does not change the decision
	return in, pending, outside
}

// outsideAddrs maps the addresses of load balancers outside the cluster, for example an edge, to the Services that have
// them.
type outsideAddrs map[netip.Addr][]api.Name

func (all outsideAddrs) add(name api.Name, ingress []corev1.LoadBalancerIngress) {
	for _, i := range ingress {
		if a, err := kube.ParseAddr(i.IP); err == nil && ptr.Deref(i.IPMode, IPModeVIP) == IPModeProxy {
			all[a] = append(all[a], name)
		}
	}
}

// reports returns the addresses, sorted. With names, it returns only the addresses of these Services.
func (all outsideAddrs) reports(only []api.Name) (out []announce.AddressReport) {
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		names := all[a]
		if len(only) > 0 && !slices.ContainsFunc(names, func(n api.Name) bool { return slices.Contains(only, n) }) {
			continue
		}
		slices.SortFunc(names, api.Name.Compare)
		out = append(out, announce.ReportOutside(a, names))
	}
	return out
}

// holdings returns the addresses that the speakers report as announced.
func (a *Announced) holdings(ctx context.Context, l *lists, s *kube.Store) (all []announce.Holding) {
	for _, k := range []announceKind{l2Statuses, bgpStatuses} {
		for _, h := range allOf(ctx, l, metallbKind(s, k.resource, func(o *unstructured.Unstructured) *announce.Holding {
			v := k.read(o)
			h := &announce.Holding{Service: v.Name, Node: v.node, Protocol: announce.Protocol(k.prefix), By: v.by, Since: o.GetCreationTimestamp().Time}
			for message := range strings.SplitSeq(v.addrs, ",") {
				if ip, err := netip.ParseAddr(message); err == nil {
					h.Addrs = append(h.Addrs, ip)
				}
			}
			return h
		})) {
			all = append(all, *h)
		}
	}
	return all
}

// states reads the ConfigurationStates. It returns the standings of the speakers on these nodes and the reported
// problems, both sorted.
func (a *Announced) states(ctx context.Context, l *lists, s *kube.Store, nodes []announce.Node) (standings []announce.Standing, problems []string) {
	standings, problems = []announce.Standing{}, []string{}
	for _, c := range allOf(ctx, l, metallbKind(s, "configurationstates", func(o *unstructured.Unstructured) *namedState {
		return &namedState{o.GetName(), convertSpeakerState(o)}
	})) {
		if c.Result == resultInvalid {
			problems = append(problems, c.name+": "+strings.ReplaceAll(c.Summary, "\n", "; "))
		}
		for _, one := range c.standings {
			if slices.ContainsFunc(nodes, func(n announce.Node) bool { return n.Name == one.Node }) { // the node still exists
				standings = append(standings, one)
			}
		}
	}
	slices.SortFunc(standings, announce.CompareStandings)
	slices.Sort(problems)
	return standings, problems
}

// misplaced reports the metallb.io objects in other namespaces, which have no effect. The API server refuses them since
// deploy/pools/policy.yaml exists, but older objects remain. Without the right to list them there is no report.
func (a *Announced) misplaced(ctx context.Context, l *lists) (problems []string) {
	for _, resource := range writtenKinds {
		found, err := a.custom.Resource(metallbResource(resource)).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		switch {
		case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
			continue
		case err != nil:
			l.err = cmp.Or(l.err, fmt.Errorf("list %s of all namespaces: %w", resource, text.RequestError(err)))
			return nil
		}
		for _, o := range found.Items {
			if o.GetNamespace() != a.namespace {
				problems = append(problems, fmt.Sprintf("%s %s/%s has no effect: metallb.io objects count only in namespace %s [move it there]", o.GetKind(), o.GetNamespace(), o.GetName(), a.namespace))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

type namedState struct {
	name string
	*speakerState
}

// lists keeps the first error of several lists.
type lists struct{ err error }

// allOf lists a kind once.
func allOf[O metav1.Object, V any](ctx context.Context, l *lists, k kube.Kind[O, V]) []*V {
	if l.err != nil {
		return nil
	}
	all, err := k.List(ctx)
	if err != nil {
		l.err = kube.AdviseForbidden(err, ", by kubectl fairway status --load-balancers or --kubeconfig FILE")
	}
	return all
}
