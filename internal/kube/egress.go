package kube

import (
	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// Egress is a subscription to all that decides which pods leave the cluster with a load balancer's address:
// Services and all pods, which it waits for.
type Egress struct {
	*Subscription
	store *Store
}

// SubscribeEgress returns a subscription to it.
func (s *Store) SubscribeEgress() *Egress {
	v := &Egress{Subscription: s.subscribe("egress addresses"), store: s}
	v.need([]input{s.services.marks(v.Subscription), s.pods.marks(v.Subscription)}, nil)
	return v
}

// Services are all of the cluster.
func (v *Egress) Services() []*service.Service { return v.store.services.All() }

// Pods are all of the cluster.
func (v *Egress) Pods() []*api.Pod { return v.store.pods.All() }
