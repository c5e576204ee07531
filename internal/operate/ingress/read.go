package ingress

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube/gateway"
	"github.com/fairway-net/fairway/internal/text"
)

// defaultClass marks the IngressClass of Ingresses without a class.
const defaultClass = "ingressclass.kubernetes.io/is-default-class"

// legacyClass is the annotation that named the class before spec.ingressClassName.
const legacyClass = "kubernetes.io/ingress.class"

// Read reads the Ingresses of a class from a cluster, and the objects that they need. An empty namespace means all.
func Read(ctx context.Context, client kubernetes.Interface, namespace, class string) (Input, error) {
	in := Input{Services: map[api.Name]*corev1.Service{}, ConfigMaps: map[api.Name]*corev1.ConfigMap{}}
	isDefault := false
	c, err := client.NetworkingV1().IngressClasses().Get(ctx, class, metav1.GetOptions{})
	switch {
	case err == nil:
		isDefault = c.Annotations[defaultClass] == "true"
	case !apierrors.IsNotFound(err): // without the object, the class can still be named by Ingresses
		return in, fmt.Errorf("read IngressClass %s: %w", class, text.OneLine(err))
	}
	list, err := client.NetworkingV1().Ingresses(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return in, fmt.Errorf("list Ingresses: %w", text.OneLine(err))
	}
	for _, g := range list.Items {
		if !belongs(&g, class, isDefault) {
			continue
		}
		in.Ingresses = append(in.Ingresses, g)
		if err := in.readNeeds(ctx, client, &g); err != nil {
			return in, err
		}
	}
	return in, nil
}

// belongs reports whether an Ingress is of a class.
func belongs(g *networkingv1.Ingress, class string, isDefault bool) bool {
	if legacy := g.Annotations[legacyClass]; legacy != "" {
		return legacy == class
	}
	if g.Spec.IngressClassName != nil {
		return *g.Spec.IngressClassName == class
	}
	return isDefault
}

// readNeeds reads the Services whose ports an Ingress names by name, and the ConfigMap of custom-headers.
func (in *Input) readNeeds(ctx context.Context, client kubernetes.Interface, g *networkingv1.Ingress) error {
	for _, s := range sites(g) {
		for _, p := range s.paths {
			b := p.Backend.Service
			if b == nil || b.Port.Name == "" || in.Services[api.Name{Namespace: g.Namespace, Name: b.Name}] != nil {
				continue
			}
			svc, err := client.CoreV1().Services(g.Namespace).Get(ctx, b.Name, metav1.GetOptions{})
			if err == nil {
				in.Services[api.Name{Namespace: g.Namespace, Name: b.Name}] = svc
			} else if !apierrors.IsNotFound(err) {
				return fmt.Errorf("read Service %s/%s: %w", g.Namespace, b.Name, text.OneLine(err))
			}
		}
	}
	name := gateway.ReadAnnotations(g).Headers
	if name.Name == "" {
		return nil
	}
	c, err := client.CoreV1().ConfigMaps(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err == nil {
		in.ConfigMaps[name] = c
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read ConfigMap %s: %w", name, text.OneLine(err))
	}
	return nil
}

// maxDocument is the most bytes of a file with objects.
const maxDocument = 64 << 20

// Parse reads Ingresses, Services and ConfigMaps from YAML or JSON, as `helm template` or `kubectl get -o yaml` print
// them. Other kinds are left out. All Ingresses count, whatever their class.
func Parse(r io.Reader) (Input, error) {
	in := Input{Services: map[api.Name]*corev1.Service{}, ConfigMaps: map[api.Name]*corev1.ConfigMap{}}
	d := yaml.NewYAMLOrJSONDecoder(io.LimitReader(r, maxDocument), 4096)
	for {
		var raw rawObject
		if err := d.Decode(&raw); errors.Is(err, io.EOF) {
			return in, nil
		} else if err != nil {
			return in, fmt.Errorf("read objects: %w", text.OneLine(err))
		}
		if err := in.add(raw); err != nil {
			return in, err
		}
	}
}

// A rawObject is the text of an object.
type rawObject []byte

// UnmarshalJSON keeps the text.
func (r *rawObject) UnmarshalJSON(b []byte) error {
	*r = bytes.Clone(b)
	return nil
}

// add adds an object, or the items of a List.
func (in *Input) add(raw rawObject) error {
	var kind struct {
		metav1.TypeMeta
		Items []rawObject
	}
	if err := decode(raw, &kind); err != nil {
		return err
	}
	for _, item := range kind.Items {
		if err := in.add(item); err != nil {
			return err
		}
	}
	switch kind.Kind {
	case "Ingress":
		var g networkingv1.Ingress
		if err := decode(raw, &g); err != nil {
			return err
		}
		g.Namespace = cmp.Or(g.Namespace, "default")
		in.Ingresses = append(in.Ingresses, g)
	case "Service":
		var s corev1.Service
		if err := decode(raw, &s); err != nil {
			return err
		}
		in.Services[api.Name{Namespace: cmp.Or(s.Namespace, "default"), Name: s.Name}] = &s
	case "ConfigMap":
		var c corev1.ConfigMap
		if err := decode(raw, &c); err != nil {
			return err
		}
		in.ConfigMaps[api.Name{Namespace: cmp.Or(c.Namespace, "default"), Name: c.Name}] = &c
	}
	return nil
}

// decode reads an object. An empty document is no object.
func decode(raw rawObject, into any) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	if err := yaml.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("read objects: %w", text.OneLine(err))
	}
	return nil
}
