package loadbalancer

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
)

// metallbGroup is the API group of the objects that describe load-balancer addresses. It is MetalLB's group, so that
// administrators need not write the objects again.
const metallbGroup = "metallb.io"

// metallbResource returns the version of a metallb.io kind that Fairway reads and writes.
func metallbResource(resource string) schema.GroupVersionResource {
	version := "v1beta1"
	if resource == "bgppeers" {
		version = "v1beta2"
	}
	return schema.GroupVersionResource{Group: metallbGroup, Version: version, Resource: resource}
}

// metallbKind declares a kind of metallb.io. As in MetalLB, only the objects of one namespace count, because a user
// with write access to these objects controls all announcements.
func metallbKind[V any](s *kube.Store, resource string, trim func(*unstructured.Unstructured) *V) kube.Kind[*unstructured.Unstructured, V] {
	return kube.Kind[*unstructured.Unstructured, V]{
		Name: resource, Object: &unstructured.Unstructured{}, Trim: trim,
		Client: kube.From(s.Config().Custom.Resource(metallbResource(resource)).Namespace(s.Config().LoadBalancerNamespace)),
	}
}

// writtenKinds are the kinds of metallb.io that administrators write.
var writtenKinds = []string{"ipaddresspools", "l2advertisements", "bgpadvertisements", "bgppeers", "bfdprofiles", "communities"}

// metallb holds the feeds of metallb.io.
type metallb struct {
	pools       *kube.Feed[ipam.Pool]
	l2          *kube.Feed[announce.L2Advertisement]
	bgp         *kube.Feed[announce.BGPAdvertisement]
	peers       *kube.Feed[announce.BGPPeer]
	bfd         *kube.Feed[announce.BFDProfile]
	communities *kube.Feed[announce.Community]
}

func openMetallb(s *kube.Store) metallb {
	return metallb{
		pools:       kube.Open(s, metallbKind(s, "ipaddresspools", convertPool)),
		l2:          kube.Open(s, metallbKind(s, "l2advertisements", convertL2Advertisement)),
		bgp:         kube.Open(s, metallbKind(s, "bgpadvertisements", convertBGPAdvertisement)),
		peers:       kube.Open(s, metallbKind(s, "bgppeers", convertBGPPeer)),
		bfd:         kube.Open(s, metallbKind(s, "bfdprofiles", convertBFDProfile)),
		communities: kube.Open(s, metallbKind(s, "communities", convertCommunity)),
	}
}

// Announcements is a subscription to the objects of metallb.io. It waits for all kinds. Dirty names are the names of
// objects of any kind. The getters return the current objects, in no order.
type Announcements struct {
	*kube.Subscription
	feeds metallb
}

// SubscribeAnnouncements returns a subscription for a consumer with this name in the log. The Store needs
// Config.Custom.
func SubscribeAnnouncements(s *kube.Store, consumer string) *Announcements {
	sub, f := s.Subscribe(consumer), openMetallb(s)
	sub.Need([]kube.Input{
		f.pools.Marks(sub), f.l2.Marks(sub), f.bgp.Marks(sub), f.peers.Marks(sub), f.bfd.Marks(sub), f.communities.Marks(sub),
	}, nil)
	return &Announcements{sub, f}
}

// Pools returns the IPAddressPools.
func (a *Announcements) Pools() []*ipam.Pool { return a.feeds.pools.All() }

// L2Advertisements returns the L2Advertisements.
func (a *Announcements) L2Advertisements() []*announce.L2Advertisement { return a.feeds.l2.All() }

// BGPAdvertisements returns the BGPAdvertisements.
func (a *Announcements) BGPAdvertisements() []*announce.BGPAdvertisement { return a.feeds.bgp.All() }

// BGPPeers returns the BGPPeers.
func (a *Announcements) BGPPeers() []*announce.BGPPeer { return a.feeds.peers.All() }

// BFDProfiles returns the BFDProfiles.
func (a *Announcements) BFDProfiles() []*announce.BFDProfile { return a.feeds.bfd.All() }

// Communities returns the Communities.
func (a *Announcements) Communities() []*announce.Community { return a.feeds.communities.All() }
