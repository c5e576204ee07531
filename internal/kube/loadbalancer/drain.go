package loadbalancer

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/text"
)

// drainPoll is the time between two reads of the node's announcements.
const drainPoll = 200 * time.Millisecond

// A Drain moves load-balancer addresses away from a node, or allows them again.
type Drain struct {
	client    kubernetes.Interface
	custom    dynamic.Interface
	namespace string // of the metallb.io objects
}

// ConnectDrain makes a client. It sends nothing yet.
func ConnectDrain(c kube.Connection, namespace string) (*Drain, error) {
	client, custom, err := kube.ConnectBoth(c)
	if err != nil {
		return nil, err
	}
	return &Drain{client, custom, namespace}, nil
}

// Exclude sets or removes the label that keeps load balancers away from a node.
func (d *Drain) Exclude(ctx context.Context, node string, exclude bool) error {
	value := any(nil)
	if exclude {
		value = "true"
	}
	if err := kube.PatchNode(ctx, d.client, node, "labels", corev1.LabelNodeExcludeBalancers, value); err != nil {
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("there is no node %q [kubectl get nodes lists them]", node)
		}
		return fmt.Errorf("label node %s: %w", node, err)
	}
	return nil
}

// Wait returns when the node announces no Service, neither on its networks nor to routers, and, if elsewhere, when other
// nodes announce those that it announced. It reads the ServiceL2Statuses and ServiceBGPStatuses. It calls left with the
// number of remaining Services when the number changes.
func (d *Drain) Wait(ctx context.Context, node string, elsewhere bool, left func(int)) error {
	last, had, missing := -1, map[string]bool{}, ""
	err := wait.PollUntilContextCancel(ctx, drainPoll, true, func(ctx context.Context) (bool, error) {
		here, others, err := d.announced(ctx, node)
		if err != nil {
			return false, err
		}
		maps.Copy(had, here)
		if n := len(here); n != last {
			last = n
			left(n)
		}
		missing = ""
		for service := range had {
			if elsewhere && !others[service] {
				missing = service
			}
		}
		return last == 0 && missing == "", nil
	})
	switch {
	case !wait.Interrupted(err):
		return err
	case last > 0:
		return fmt.Errorf("%d Services are still announced by node %s [no other node may announce them, or its speaker does not run: see its log]", last, node)
	}
	return fmt.Errorf("node %s announces nothing any more, and no other node announces %s [fairway status --load-balancers %[2]s says why]", node, missing)
}

// announced returns the Services that a node announces, and those that other nodes announce.
func (d *Drain) announced(ctx context.Context, node string) (here, others map[string]bool, err error) {
	here, others = map[string]bool{}, map[string]bool{}
	for _, k := range []announceKind{l2Statuses, bgpStatuses} {
		list, err := k.client(d.custom, d.namespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue // no load balancer of Fairway is in the cluster
		}
		if err != nil {
			return nil, nil, fmt.Errorf("list %s: %w", k.resource, text.RequestError(err))
		}
		for i := range list.Items {
			of := list.Items[i].GetLabels()
			service := of[labelServiceNamespace] + "/" + of[labelServiceName]
			if of[labelAnnouncer] == labelValue(node) {
				here[service] = true
			} else {
				others[service] = true
			}
		}
	}
	return here, others, nil
}
