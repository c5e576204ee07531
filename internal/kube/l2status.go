package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/fairway-net/fairway/internal/oneline"
	"github.com/fairway-net/fairway/internal/service"
)

// Labels of a ServiceL2Status, MetalLB's.
const (
	labelAnnouncer        = "metallb.io/node"
	labelServiceName      = "metallb.io/service-name"
	labelServiceNamespace = "metallb.io/service-namespace"
	labelLimit            = 63
)

// leaveTimeout is how long a speaker that ends may take to remove what it wrote.
const leaveTimeout = 2 * time.Second

// L2Statuses writes an object ServiceL2Status for each Service that this node announces, as
// MetalLB does, and removes those of Services that it does not announce any more. Their owner is
// the Node, so that they go with it. It is level-triggered, and does not make its caller wait.
type L2Statuses struct {
	log    *slog.Logger
	client dynamic.ResourceInterface
	node   string
	uid    func() string // of the Node; empty: not known
	inform func(name service.Name, reason, message string)

	mu    sync.Mutex
	wants map[service.Name][]string // interfaces
	wake  chan struct{}

	have map[service.Name]l2Status // nil: not read; Run's
}

// An l2Status is an object as it is.
type l2Status struct {
	object     string // its name
	interfaces []string
}

// L2Statuses returns what writes them for this node. inform is told when the node begins to
// announce a Service.
func (v *Speaker) L2Statuses(log *slog.Logger, inform func(name service.Name, reason, message string)) *L2Statuses {
	s := v.store
	uid := func() string {
		n, _ := v.nodes.Get(service.Name{Name: s.cfg.NodeName})
		if n == nil {
			return ""
		}
		return n.UID
	}
	return &L2Statuses{
		log: log, client: l2StatusClient(s.cfg.Custom, s.cfg.LoadBalancerNamespace), node: s.cfg.NodeName, uid: uid, inform: inform,
		wake: make(chan struct{}, 1),
	}
}

// l2StatusClient is a client for the ServiceL2Statuses of a namespace.
func l2StatusClient(custom dynamic.Interface, namespace string) dynamic.ResourceInterface {
	return custom.Resource(schema.GroupVersionResource{Group: metallbGroup, Version: "v1beta1", Resource: "servicel2statuses"}).Namespace(namespace)
}

// announcedBy selects the ServiceL2Statuses of a node.
func announcedBy(node string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: labelAnnouncer + "=" + labelValue(node)}
}

// Set says which Services the node announces, and on which interfaces.
func (w *L2Statuses) Set(interfaces map[service.Name][]string) {
	w.mu.Lock()
	w.wants = interfaces
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends, and removes the objects then, as far as that is quickly done: what is
// left, the next speaker finds.
func (w *L2Statuses) Run(ctx context.Context) error {
	defer func() {
		w.Set(nil)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		if w.have != nil {
			_ = w.reconcile(ctx)
		}
	}()
	pause := statusAgain
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		for err := w.reconcile(ctx); err != nil && ctx.Err() == nil; err = w.reconcile(ctx) {
			w.have = nil // whatever was written before the error is read again
			w.log.Warn("cannot write which Services this node announces; trying again", "err", oneline.Error(err), "after", pause)
			if !sleepFor(ctx, pause) {
				return nil
			}
			pause = min(2*pause, statusLast)
		}
		pause = statusAgain
		if !sleepFor(ctx, statusAgain) { // an address that goes to and fro costs few writes
			return nil
		}
	}
}

func sleepFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// reconcile makes the objects those that are wanted now.
func (w *L2Statuses) reconcile(ctx context.Context) error {
	if w.have == nil {
		if err := w.read(ctx); err != nil {
			return err
		}
	}
	w.mu.Lock()
	wants := w.wants
	w.mu.Unlock()
	for name, has := range w.have {
		if _, ok := wants[name]; ok {
			continue
		}
		if err := w.remove(ctx, has.object); err != nil {
			return err
		}
		delete(w.have, name)
	}
	for name, interfaces := range wants {
		has, ok := w.have[name]
		if ok && slices.Equal(has.interfaces, interfaces) {
			continue
		}
		has.interfaces, has.object = interfaces, cmp.Or(has.object, w.nameOf(name))
		if err := w.write(ctx, name, has); err != nil {
			return err
		}
		w.have[name] = has
		if !ok {
			w.inform(name, "nodeAssigned", fmt.Sprintf("announcing from node %q with protocol %q", w.node, "layer2"))
		}
		if !sleepFor(ctx, statusPause) {
			return nil
		}
	}
	return nil
}

func (w *L2Statuses) remove(ctx context.Context, object string) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if err := w.client.Delete(ctx, object, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete ServiceL2Status %s: %w", object, err)
	}
	return nil
}

// read finds the objects of this node. Of several for one Service one is kept.
func (w *L2Statuses) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	list, err := w.client.List(ctx, announcedBy(w.node))
	if err != nil {
		return fmt.Errorf("list ServiceL2Statuses: %w", err)
	}
	have := map[service.Name]l2Status{}
	for i := range list.Items {
		o := &list.Items[i]
		name := service.Name{Namespace: o.GetLabels()[labelServiceNamespace], Name: o.GetLabels()[labelServiceName]}
		if _, ok := have[name]; ok {
			if err := w.remove(ctx, o.GetName()); err != nil {
				return err
			}
			continue
		}
		have[name] = l2Status{o.GetName(), interfacesOf(o)}
	}
	w.have = have
	return nil
}

// interfacesOf reads status.interfaces[].name.
func interfacesOf(o *unstructured.Unstructured) (names []string) {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "interfaces") // what is malformed is written anew
	for _, one := range all {
		if m, ok := one.(map[string]any); ok {
			if name, ok := m["name"].(string); ok {
				names = append(names, name)
			}
		}
	}
	return names
}

// write makes the object, and then its status.
func (w *L2Statuses) write(ctx context.Context, name service.Name, s l2Status) error {
	uid := w.uid()
	if uid == "" {
		return fmt.Errorf("there is no Node %s yet", w.node)
	}
	interfaces := []any{}
	for _, i := range s.interfaces {
		interfaces = append(interfaces, map[string]any{"name": i})
	}
	meta := map[string]any{
		"name": s.object,
		"labels": map[string]any{
			labelAnnouncer: labelValue(w.node), labelServiceName: labelValue(name.Name), labelServiceNamespace: name.Namespace,
		},
		"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Node", "name": w.node, "uid": uid}},
	}
	err := w.apply(ctx, s.object, map[string]any{"metadata": meta})
	if err == nil {
		err = w.apply(ctx, s.object, map[string]any{"metadata": map[string]any{"name": s.object}, "status": map[string]any{
			"node": w.node, "serviceName": name.Name, "serviceNamespace": name.Namespace, "interfaces": interfaces,
		}}, "status")
	}
	if err != nil {
		return fmt.Errorf("write ServiceL2Status %s of Service %v: %w", s.object, name, err)
	}
	return nil
}

func (w *L2Statuses) apply(ctx context.Context, object string, body map[string]any, subresources ...string) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	body["apiVersion"], body["kind"] = metallbGroup+"/v1beta1", "ServiceL2Status"
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	force := true
	_, err = w.client.Patch(ctx, object, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: speakerOwner, Force: &force}, subresources...)
	return err
}

// nameOf returns what the object of a Service is called: MetalLB's begin with l2- too.
func (w *L2Statuses) nameOf(name service.Name) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{w.node, name.Namespace, name.Name}, "/")))
	return fmt.Sprintf("l2-%x", sum[:5])
}

// labelValue returns a text as the value of a label, where it is too long with a hash for its end.
func labelValue(text string) string {
	if len(text) <= labelLimit {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return strings.TrimRight(text[:labelLimit-11], ".-_") + fmt.Sprintf("-%x", sum[:5])
}
