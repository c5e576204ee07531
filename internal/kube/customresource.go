package kube

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/text"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// ClusterNetworkPolicies is the resource of ClusterNetworkPolicies.
var ClusterNetworkPolicies = schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1alpha2", Resource: "clusternetworkpolicies"}

// ReasonConfiguration is the reason of problems in custom resources.
const ReasonConfiguration = "InvalidConfiguration"

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

// ReadSpec reads the spec of a custom resource. The cluster's schema may differ from ours.
func ReadSpec(o *unstructured.Unstructured, spec any, bad *Problems) {
	m, _, err := unstructured.NestedMap(o.Object, "spec")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(m, spec)
	}
	if err != nil {
		bad.Add(ReasonConfiguration, "it cannot be read: %v [is its CustomResourceDefinition ours?]", text.OneLine(err))
	}
}

// ReadSelector reads a label selector. An invalid requirement matches nothing.
func ReadSelector(field string, s *metav1.LabelSelector, bad *Problems) api.Selector {
	var all []api.Requirement
	for key, value := range s.MatchLabels {
		all = append(all, api.Requirement{Key: key, Op: api.In, Values: []string{value}})
	}
	for _, e := range s.MatchExpressions {
		op, err := api.ParseOperator(string(e.Operator))
		switch valued := op == api.In || op == api.NotIn; {
		case err != nil:
			bad.Add(ReasonConfiguration, "%s: label %s: %v", field, e.Key, err)
		case valued != (len(e.Values) > 0):
			bad.Add(ReasonConfiguration, "%s: label %s: %s has %d values [In and NotIn need some, Exists and DoesNotExist have none]", field, e.Key, e.Operator, len(e.Values))
			op = api.Nothing
		}
		all = append(all, api.Requirement{Key: e.Key, Op: op, Values: append([]string(nil), e.Values...)})
	}
	return api.NewSelector(all...)
}

// ApplyStatus writes the status of a custom object by server-side apply, so the fields of other owners stay. If made is
// not nil, it is metadata, and ApplyStatus creates a missing object with it. A cluster-scoped object has no namespace
// in its name.
func (s *Store) ApplyStatus(ctx context.Context, resource schema.GroupVersionResource, kind string, name api.Name, how metav1.ApplyOptions, made, status map[string]any) error {
	client := s.cfg.Custom.Resource(resource).Namespace(name.Namespace)
	patch := func(meta, body map[string]any, subresources ...string) error {
		meta["name"] = name.Name
		if name.Namespace != "" {
			meta["namespace"] = name.Namespace
		}
		body["apiVersion"], body["kind"], body["metadata"] = resource.GroupVersion().String(), kind, meta
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode %s %v: %w", kind, name, err)
		}
		_, err = client.Patch(ctx, name.Name, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: how.FieldManager, Force: &how.Force}, subresources...)
		return err
	}
	if made != nil {
		if err := patch(made, map[string]any{}); err != nil {
			return err
		}
	}
	return patch(map[string]any{}, map[string]any{"status": status}, "status")
}
