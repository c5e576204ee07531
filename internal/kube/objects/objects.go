// Package objects reads and writes objects of any kind, for administrators' commands such as `fairway install`.
//
//	kubeconfig ──> Connect ──> Client ── Get, List, Apply, Put, Patch, Delete ──> kube-apiserver
//	                              └── discovery: the resource of a kind
//
// Each request has a deadline. A missing object is no error. Apply is server-side apply: fields of other owners stay,
// unless the object names them.
package objects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/fairway-net/fairway/internal/text"
)

// FieldManager owns the fields that Apply writes.
const FieldManager = "fairway"

// timeout is the time for one request.
const timeout = 30 * time.Second

// A Ref names an object.
type Ref struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// RefOf names o.
func RefOf(o *unstructured.Unstructured) Ref {
	return Ref{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
}

// Same reports whether both refer to one object, possibly in different versions of its API.
func (r Ref) Same(other Ref) bool {
	a, _ := schema.ParseGroupVersion(r.APIVersion)
	b, _ := schema.ParseGroupVersion(other.APIVersion)
	return a.Group == b.Group && r.Kind == other.Kind && r.Namespace == other.Namespace && r.Name == other.Name
}

// String is "DaemonSet kube-system/fairway-agent".
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// A Client talks to one API server.
type Client struct {
	dynamic dynamic.Interface
	disco   discovery.DiscoveryInterface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
	host    string
}

// Connect makes a client from a kubeconfig file. With an empty path it finds the file as kubectl does, and with an
// empty context it uses the file's current context. It sends nothing yet.
func Connect(kubeconfig, context, userAgent string) (*Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: context}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster: there is no kubeconfig [give --kubeconfig FILE, or set KUBECONFIG]")
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", text.OneLine(err))
	}
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // each request's error contains klog's message
	cfg.UserAgent, cfg.QPS, cfg.Burst = userAgent, 50, 100
	c := &Client{host: cfg.Host}
	if c.dynamic, err = dynamic.NewForConfig(cfg); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, text.OneLine(err))
	}
	if c.disco, err = discovery.NewDiscoveryClientForConfig(cfg); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg.Host, text.OneLine(err))
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.disco))
	return c, nil
}

// Host returns the API server's address.
func (c *Client) Host() string { return c.host }

// Version returns the API server's version: "v1.37.1".
func (c *Client) Version(context.Context) (string, error) {
	v, err := c.disco.ServerVersion()
	if err != nil {
		return "", fmt.Errorf("reach the API server at %s: %w", c.host, text.RequestError(err))
	}
	return v.GitVersion, nil
}

// resource returns the client for a kind; nil if the server has no such kind.
func (c *Client) resource(apiVersion, kind, namespace string) (dynamic.ResourceInterface, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", kind, apiVersion, err)
	}
	gk := schema.GroupKind{Group: gv.Group, Kind: kind}
	mapping, err := c.mapper.RESTMapping(gk, gv.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset() // the kind may be new
		mapping, err = c.mapper.RESTMapping(gk, gv.Version)
	}
	if meta.IsNoMatchError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find kind %s at %s: %w", kind, c.host, text.RequestError(err))
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.dynamic.Resource(mapping.Resource), nil
	}
	return c.dynamic.Resource(mapping.Resource).Namespace(namespace), nil
}

// on runs a request about an object.
func (c *Client) on(ctx context.Context, verb string, r Ref, do func(context.Context, dynamic.ResourceInterface) error) error {
	res, err := c.resource(r.APIVersion, r.Kind, r.Namespace)
	if err != nil {
		return err
	}
	if res == nil {
		return fmt.Errorf("%s %s: %w", verb, r, ErrNoKind)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := do(ctx, res); err != nil {
		return fmt.Errorf("%s %s: %w", verb, r, text.RequestError(err))
	}
	return nil
}

// ErrNoKind says that the API server does not know the object's kind.
var ErrNoKind = errors.New("the API server has no such kind of object")

// Get returns the object; nil if the object or its kind does not exist.
func (c *Client) Get(ctx context.Context, r Ref) (o *unstructured.Unstructured, err error) {
	err = c.on(ctx, "get", r, func(ctx context.Context, res dynamic.ResourceInterface) (err error) {
		o, err = res.Get(ctx, r.Name, metav1.GetOptions{})
		return err
	})
	if apierrors.IsNotFound(err) || errors.Is(err, ErrNoKind) {
		return nil, nil
	}
	return o, err
}

// List returns the objects of a kind, of all namespaces if namespace is empty. It returns no objects if the server has
// no such kind.
func (c *Client) List(ctx context.Context, apiVersion, kind, namespace, selector string) (all []unstructured.Unstructured, err error) {
	err = c.on(ctx, "list", Ref{APIVersion: apiVersion, Kind: kind, Namespace: namespace}, func(ctx context.Context, res dynamic.ResourceInterface) error {
		list, err := res.List(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: "0"})
		if err == nil {
			all = list.Items
		}
		return err
	})
	if errors.Is(err, ErrNoKind) {
		return nil, nil
	}
	return all, err
}

// Apply applies o on the server and returns the result. With dryRun the server changes nothing.
func (c *Client) Apply(ctx context.Context, o *unstructured.Unstructured, dryRun bool) (result *unstructured.Unstructured, err error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", RefOf(o), err)
	}
	force := true
	options := metav1.PatchOptions{FieldManager: FieldManager, Force: &force}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	err = c.on(ctx, "apply", RefOf(o), func(ctx context.Context, res dynamic.ResourceInterface) (err error) {
		result, err = res.Patch(ctx, o.GetName(), types.ApplyPatchType, data, options)
		return err
	})
	return result, err
}

// Put creates o or, if it has a resource version, replaces exactly that version.
func (c *Client) Put(ctx context.Context, o *unstructured.Unstructured) (result *unstructured.Unstructured, err error) {
	err = c.on(ctx, "write", RefOf(o), func(ctx context.Context, res dynamic.ResourceInterface) (err error) {
		if o.GetResourceVersion() == "" {
			result, err = res.Create(ctx, o, metav1.CreateOptions{FieldManager: FieldManager})
		} else {
			result, err = res.Update(ctx, o, metav1.UpdateOptions{FieldManager: FieldManager})
		}
		return err
	})
	return result, err
}

// Patch merges a JSON merge patch into an object.
func (c *Client) Patch(ctx context.Context, r Ref, patch []byte) error {
	return c.on(ctx, "patch", r, func(ctx context.Context, res dynamic.ResourceInterface) error {
		_, err := res.Patch(ctx, r.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		return err
	})
}

// Delete deletes the object and its dependents. A missing object is no error.
func (c *Client) Delete(ctx context.Context, r Ref) error {
	background := metav1.DeletePropagationBackground
	err := c.on(ctx, "delete", r, func(ctx context.Context, res dynamic.ResourceInterface) error {
		return res.Delete(ctx, r.Name, metav1.DeleteOptions{PropagationPolicy: &background})
	})
	if apierrors.IsNotFound(err) || errors.Is(err, ErrNoKind) {
		return nil
	}
	return err
}

// IsConflict reports that another client has written the object meanwhile.
func IsConflict(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
