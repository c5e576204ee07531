package scenario

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// convert reads Kubernetes objects as the agent would get them from the API server,
// through the same converters. Objects without a namespace are in "default".
func convert(text string) (svcs []*service.Service, eps []*service.Slice, err error) {
	for i, doc := range strings.Split("\n"+text, "\n---") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			return nil, nil, fmt.Errorf("objects.yaml, object %d: %w", i+1, err)
		}
		switch kind.APIVersion + " " + kind.Kind {
		case "v1 Service":
			var o corev1.Service
			if err = yaml.UnmarshalStrict([]byte(doc), &o); err == nil {
				home(&o.ObjectMeta)
				svcs = append(svcs, kube.ConvertService(&o))
			}
		case "discovery.k8s.io/v1 EndpointSlice":
			var o discoveryv1.EndpointSlice
			if err = yaml.UnmarshalStrict([]byte(doc), &o); err == nil {
				home(&o.ObjectMeta)
				eps = append(eps, kube.ConvertSlice(&o))
			}
		default:
			err = fmt.Errorf("%q of apiVersion %q is neither Service nor EndpointSlice", kind.Kind, kind.APIVersion)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("objects.yaml, object %d: %w", i+1, err)
		}
	}
	return svcs, eps, nil
}

func home(o *metav1.ObjectMeta) {
	if o.Namespace == "" {
		o.Namespace = "default"
	}
}
