package kube

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/loadbalancer/announce"
	"github.com/fairway-net/fairway/internal/loadbalancer/ipam"
	"github.com/fairway-net/fairway/internal/text"
)

// metallbGroup is the API group of the objects that describe load-balancer addresses. It is MetalLB's group, so that
// administrators need not write the objects again.
const metallbGroup = "metallb.io"

// ConnectBoth makes a client for built-in objects and a client for custom resources. It sends nothing yet.
func ConnectBoth(c Connection) (kubernetes.Interface, dynamic.Interface, error) {
	client, err := Connect(c)
	if err != nil {
		return nil, nil, err
	}
	custom, err := ConnectCustom(c)
	if err != nil {
		return nil, nil, err
	}
	return client, custom, nil
}

// ConnectCustom makes a client for custom resources. It reads files but sends nothing yet.
func ConnectCustom(c Connection) (dynamic.Interface, error) {
	cfg, err := c.restConfig(serviceAccount)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(cfg) // dynamic clients use JSON, even with another ContentType
	if err != nil {
		return nil, fmt.Errorf("connect to the API server at %s: %w", cfg.Host, text.OneLine(err))
	}
	return client, nil
}

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
func metallbKind[V any](s *Store, resource string, trim func(*unstructured.Unstructured) *V) kind[*unstructured.Unstructured, V] {
	return kind[*unstructured.Unstructured, V]{
		name: resource, object: &unstructured.Unstructured{}, trim: trim,
		client: from(s.cfg.Custom.Resource(metallbResource(resource)).Namespace(s.cfg.LoadBalancerNamespace)),
	}
}

// writtenKinds are the kinds of metallb.io that administrators write.
var writtenKinds = []string{"ipaddresspools", "l2advertisements", "bgpadvertisements", "bgppeers", "bfdprofiles", "communities"}

// metallb holds the feeds of metallb.io.
type metallb struct {
	pools       *Feed[ipam.Pool]
	l2          *Feed[announce.L2Advertisement]
	bgp         *Feed[announce.BGPAdvertisement]
	peers       *Feed[announce.BGPPeer]
	bfd         *Feed[announce.BFDProfile]
	communities *Feed[announce.Community]
}

func openMetallb(s *Store) metallb {
	return metallb{
		pools:       open(s, metallbKind(s, "ipaddresspools", convertPool)),
		l2:          open(s, metallbKind(s, "l2advertisements", convertL2Advertisement)),
		bgp:         open(s, metallbKind(s, "bgpadvertisements", convertBGPAdvertisement)),
		peers:       open(s, metallbKind(s, "bgppeers", convertBGPPeer)),
		bfd:         open(s, metallbKind(s, "bfdprofiles", convertBFDProfile)),
		communities: open(s, metallbKind(s, "communities", convertCommunity)),
	}
}

// Announcements is a subscription to the objects of metallb.io. It waits for all kinds. Dirty names are the names of
// objects of any kind. The getters return the current objects, in no order.
type Announcements struct {
	*Subscription
	feeds metallb
}

// SubscribeAnnouncements returns a subscription for a consumer with this name in the log. The Store needs
// Config.Custom.
func (s *Store) SubscribeAnnouncements(consumer string) *Announcements {
	sub, f := s.subscribe(consumer), s.metallb
	sub.need([]input{
		f.pools.marks(sub), f.l2.marks(sub), f.bgp.marks(sub), f.peers.marks(sub), f.bfd.marks(sub), f.communities.marks(sub),
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
