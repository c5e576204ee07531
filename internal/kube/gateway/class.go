package gateway

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/gateway"
	"github.com/fairway-net/fairway/internal/kube"
)

// className is the name of the GatewayClass that the controller makes. The manifests have an IngressClass of this name.
const className = "fairway"

// newClass returns the writer that makes the GatewayClass as soon as its CustomResourceDefinition exists. A class of this
// name stays as it is, whoever made it.
func (c *Controller) newClass() *kube.StatusWriter[struct{}] {
	classes := c.objects.feeds[gateway.KindGatewayClass]
	w := kube.NewStatusWriter(kube.StatusConfig[struct{}]{
		Log: c.log, Owner: owner, Kind: "gatewayclasses", Apply: c.makeClass,
		Have: func(name api.Name) (struct{}, bool) {
			_, exists := classes.Get(name)
			return struct{}{}, exists
		},
		Make: func() bool { return classes.Input().Listed() },
	})
	name := api.Name{Name: className}
	classes.Follow(func(changed api.Name, _, _ *entry, _ int64) {
		if changed == name {
			w.Changed(name)
		}
	})
	classes.OnSettle(func() { w.Changed(name) })
	w.Set(name, struct{}{})
	return w
}

// makeClass creates the GatewayClass.
func (c *Controller) makeClass(ctx context.Context, name api.Name, _ struct{}, how metav1.ApplyOptions) error {
	k, _ := customKindOf(gateway.KindGatewayClass)
	class := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": k.resource.GroupVersion().String(), "kind": string(k.kind),
		"metadata": map[string]any{"name": name.Name, "labels": map[string]any{"app.kubernetes.io/name": "fairway-gateway"}},
		"spec":     map[string]any{"controllerName": ControllerName, "description": "The gateways of Fairway"},
	}}
	if _, err := c.store.Config().Custom.Resource(k.resource).Create(ctx, class, metav1.CreateOptions{FieldManager: how.FieldManager}); err != nil {
		return fmt.Errorf("make the GatewayClass %s: %w", name.Name, err)
	}
	return nil
}
