package kube

import (
	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// Egress is a subscription to the input of egress addresses: Services, nodes and all pods. It waits for these lists.
type Egress struct {
	*Subscription
	store *Store
}

// SubscribeEgress returns a subscription to Services, nodes and pods. It waits for all of them.
func (s *Store) SubscribeEgress() *Egress {
	v := &Egress{Subscription: s.Subscribe("egress addresses"), store: s}
	v.Need([]Input{s.services.Marks(v.Subscription), s.nodes.Marks(v.Subscription), s.pods.Marks(v.Subscription)}, nil)
	return v
}

// Services returns all Services.
func (v *Egress) Services() []*service.Service { return v.store.services.All() }

// Pods returns all pods, with the addresses that they may have.
func (v *Egress) Pods() []*api.Pod { return v.store.AcceptedPods() }
