package loadbalancer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/election"
)

// The objects that speakers share, in the namespace of the metallb.io objects.
const (
	votersName = "fairway-speaker-voters" // a ConfigMap with the list of voters
	votersKey  = "voters"
	secretName = "fairway-speaker" // a Secret with the key for heartbeats
	secretKey  = "key"
	secretSize = 32
)

// A Speaker is a subscription to the input of layer-2 announcements: Services of type LoadBalancer, their endpoints,
// the nodes, the metallb.io objects, and the list of voters. It waits for all of them.
type Speaker struct {
	*kube.Subscription
	*Announcements
	*LeaseVote
	store    *kube.Store
	services *kube.Feed[announce.Service]
	nodes    *kube.Feed[announce.Node]
	claims   *kube.Claims // of nodes
	voters   *kube.Feed[votersObject]
}

// votersObject is the ConfigMap with the list of voters.
type votersObject struct {
	voters  election.Voters
	version string
}

// SubscribeSpeaker returns the speaker's subscription. The Store needs Config.Custom. class is the loadBalancerClass of
// our Services; empty: the Services without a class.
func SubscribeSpeaker(s *kube.Store, class string) *Speaker {
	c := s.Config().Client
	v := &Speaker{Announcements: SubscribeAnnouncements(s, "speaker: metallb.io"), store: s}
	v.LeaseVote = &LeaseVote{client: c.CoordinationV1().Leases(s.Config().LoadBalancerNamespace), name: voteName, node: s.Config().NodeName, now: time.Now}
	v.services = kube.Open(s, kube.Kind[*corev1.Service, announce.Service]{
		Name: "services", Object: &corev1.Service{}, Client: kube.From(c.CoreV1().Services(metav1.NamespaceAll)),
		Trim: func(o *corev1.Service) *announce.Service { return convertBalanced(o, class) },
	})
	v.nodes = kube.Open(s, kube.Kind[*corev1.Node, announce.Node]{
		Name: "nodes", Object: &corev1.Node{}, Client: kube.From(c.CoreV1().Nodes()), Trim: convertAnnounceNode,
	})
	v.claims = kube.ClaimsOf(s, v.nodes, (*announce.Node).Claims)
	v.voters = kube.Open(s, kube.Kind[*corev1.ConfigMap, votersObject]{
		Name: "configmaps", Object: &corev1.ConfigMap{}, Client: kube.From(c.CoreV1().ConfigMaps(s.Config().LoadBalancerNamespace)),
		Only: metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, votersName).String()},
		Trim: convertVoters,
	})
	v.Subscription = s.Subscribe("speaker")
	f := v.feeds
	v.Need([]kube.Input{
		v.services.Marks(v.Subscription), s.SliceFeed().Marks(v.Subscription), v.nodes.Marks(v.Subscription), v.voters.Marks(v.Subscription),
		f.pools.Marks(v.Subscription), f.l2.Marks(v.Subscription),
	}, []kube.Input{f.bgp.Marks(v.Subscription), f.peers.Marks(v.Subscription), s.RangeFeed().Marks(v.Subscription)})
	return v
}

// Input returns the current input of the layer-2 decision.
func (v *Speaker) Input() announce.Input {
	in := announce.Input{Pools: v.Pools(), L2: v.L2Advertisements(), Services: v.services.All()}
	if len(v.BGPPeers()) > 0 {
		in.Routed = v.BGPAdvertisements()
	}
	in.Endpoints = func(name api.Name) announce.Endpoints { return announce.EndpointsOf(v.store.SliceFeed().Of(name)) }
	// An address may be another node's too. An older node must not silence a younger one by naming its address.
	in.Accepted = v.claims.Now()
	for _, p := range v.BGPPeers() {
		in.Routers = append(in.Routers, p.PeerAddress)
	}
	for _, n := range v.nodes.All() {
		node := *n
		node.Addrs = in.Accepted.Addrs(n.Name)
		in.Nodes = append(in.Nodes, node)
	}
	slices.SortFunc(in.Nodes, func(a, b announce.Node) int { return strings.Compare(a.Name, b.Name) })
	return in
}

// Voters returns the list of voters; Epoch 0: no list.
func (v *Speaker) Voters() election.Voters {
	o, ok := v.voters.Get(api.Name{Namespace: v.store.Config().LoadBalancerNamespace, Name: votersName})
	if !ok {
		return election.Voters{}
	}
	return o.voters
}

// SetVoters replaces the list of voters by next, if the list is still as Voters returned it. If several speakers try,
// one succeeds.
func (v *Speaker) SetVoters(ctx context.Context, next election.Voters) error {
	namespace := v.store.Config().LoadBalancerNamespace
	text, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("write the list of voters: %w", err)
	}
	o := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: votersName, Labels: map[string]string{"app.kubernetes.io/part-of": "fairway"}},
		Data:       map[string]string{votersKey: string(text)},
	}
	maps := v.store.Config().Client.CoreV1().ConfigMaps(namespace)
	if was, ok := v.voters.Get(api.Name{Namespace: namespace, Name: votersName}); ok {
		o.ResourceVersion = was.version
		_, err = maps.Update(ctx, o, metav1.UpdateOptions{})
	} else {
		_, err = maps.Create(ctx, o, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write the list of voters: %w", err)
	}
	return nil
}

func convertVoters(o *corev1.ConfigMap) *votersObject {
	v := &votersObject{version: o.ResourceVersion}
	if err := json.Unmarshal([]byte(o.Data[votersKey]), &v.voters); err != nil {
		v.voters = election.Voters{}
	}
	return v
}

// convertBalanced returns the parts of our Service that announcing needs; nil: it is not our Service.
func convertBalanced(o *corev1.Service, class string) *announce.Service {
	has := ""
	if o.Spec.LoadBalancerClass != nil {
		has = *o.Spec.LoadBalancerClass
	}
	if o.Spec.Type != corev1.ServiceTypeLoadBalancer || has != class {
		return nil
	}
	var bad kube.Problems // the agent reports them
	return &announce.Service{
		Name: api.Name{Namespace: o.Namespace, Name: o.Name}, Labels: o.Labels,
		Pool:                api.Cut(o.Annotations[metallbPrefix+annotationFrom], requestLimit),
		Addrs:               kube.BalancerIPs(o.Status.LoadBalancer.Ingress, &bad),
		Local:               o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		HealthCheckNodePort: uint16(o.Spec.HealthCheckNodePort),
		Egress:              o.Annotations[kube.AnnotationEgress] != "",
	}
}

func convertAnnounceNode(o *corev1.Node) *announce.Node {
	n := kube.ConvertNode(o)
	return &announce.Node{Name: o.Name, UID: string(o.UID), Labels: o.Labels, Excluded: kube.Excluded(o), Created: n.Created,
		Addrs: n.Addrs[:n.Internal], PodCIDRs: n.PodCIDRs}
}

// SpeakerKey returns the key that authenticates the speakers' heartbeats, from the Secret. The first speaker makes the
// Secret.
func SpeakerKey(ctx context.Context, client kubernetes.Interface, namespace string) ([]byte, error) {
	secrets := client.CoreV1().Secrets(namespace)
	for {
		s, err := secrets.Get(ctx, secretName, metav1.GetOptions{})
		if err == nil {
			if len(s.Data[secretKey]) < secretSize {
				return nil, fmt.Errorf("the Secret %s/%s has no %q of at least %d bytes [delete it: the speakers make another one when they restart]", namespace, secretName, secretKey, secretSize)
			}
			return s.Data[secretKey], nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read Secret %s/%s: %w", namespace, secretName, err)
		}
		key := make([]byte, secretSize)
		_, _ = rand.Read(key) // it never fails
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secretName, Labels: map[string]string{"app.kubernetes.io/part-of": "fairway"}},
			Data:       map[string][]byte{secretKey: key},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("make Secret %s/%s: %w", namespace, secretName, err)
		}
	}
}
