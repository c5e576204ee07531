package kube

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/fairway-net/fairway/internal/announce"
	"github.com/fairway-net/fairway/internal/service"
)

// passwordSecretType is the type of the Secrets that a BGPPeer may name, as with MetalLB, and
// passwordKey where they have the password.
const (
	passwordSecretType = corev1.SecretTypeBasicAuth
	passwordKey        = corev1.BasicAuthPasswordKey
)

// BGP is a subscription to all that decides what a node announces to routers. It shares what a
// Speaker reads, and has a gate of its own: what L2 waits for, and what BGP waits for, do not hold
// up each other.
type BGP struct {
	*Subscription
	speaker *Speaker
	secrets *Feed[password]
}

type password struct{ text string }

// SubscribeBGP returns the subscription of a speaker's BGP.
func (v *Speaker) SubscribeBGP() *BGP {
	s := v.store
	b := &BGP{Subscription: s.subscribe("speaker: BGP"), speaker: v}
	b.secrets = open(s, kind[*corev1.Secret, password]{
		name: "secrets", without: "no session with a BGPPeer that names a passwordSecret", object: &corev1.Secret{}, client: from(s.cfg.Client.CoreV1().Secrets(s.cfg.LoadBalancerNamespace)),
		only: metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type", string(passwordSecretType)).String()},
		trim: func(o *corev1.Secret) *password {
			if o.Type != passwordSecretType || len(o.Data[passwordKey]) == 0 {
				return nil
			}
			return &password{string(o.Data[passwordKey])}
		},
	})
	f := s.metallb
	b.need([]input{
		v.services.marks(b.Subscription), s.slices.marks(b.Subscription), v.nodes.marks(b.Subscription),
		f.pools.marks(b.Subscription), f.bgp.marks(b.Subscription), f.peers.marks(b.Subscription), f.communities.marks(b.Subscription),
	}, []input{b.secrets.marks(b.Subscription)})
	return b
}

// BGP returns what decides, as it is now. Whose node it is, and what its kernel holds, the
// caller knows.
func (b *BGP) BGP() announce.BGPInput {
	v := b.speaker
	return announce.BGPInput{
		Input: v.Input(), Advertisements: v.BGPAdvertisements(), Peers: v.BGPPeers(), Communities: v.Communities(),
		Password: func(secret string) (string, bool) {
			p, ok := b.secrets.Get(service.Name{Namespace: v.store.cfg.LoadBalancerNamespace, Name: secret})
			if !ok {
				return "", false
			}
			return p.text, true
		},
	}
}
