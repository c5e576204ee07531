package scenario

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/service"
)

// convert reads Kubernetes objects with the agent's converters. Objects without a namespace are in "default".
func convert(text string) (svcs []*service.Service, eps []*service.Slice, err error) {
	var services []*corev1.Service
	var pods []*corev1.Pod
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
				services = append(services, &o)
			}
		case "v1 Pod":
			var o corev1.Pod
			if err = yaml.UnmarshalStrict([]byte(doc), &o); err == nil {
				home(&o.ObjectMeta)
				pods = append(pods, &o)
			}
		case "discovery.k8s.io/v1 EndpointSlice":
			var o discoveryv1.EndpointSlice
			if err = yaml.UnmarshalStrict([]byte(doc), &o); err == nil {
				home(&o.ObjectMeta)
				eps = append(eps, kube.ConvertSlice(&o))
			}
		default:
			err = fmt.Errorf("%q of apiVersion %q is none of Service, EndpointSlice, Pod", kind.Kind, kind.APIVersion)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("objects.yaml, object %d: %w", i+1, err)
		}
	}
	for _, o := range services {
		svc := kube.ConvertService(o)
		svcs = append(svcs, svc)
		if svc.Weighted {
			weigh(o, eps, pods)
		}
	}
	return svcs, eps, nil
}

// weigh adds the weights of pods to the slices of their Service, as the controller does.
func weigh(svc *corev1.Service, eps []*service.Slice, pods []*corev1.Pod) {
	weights := map[string]*kube.PodWeight{} // by address
	for _, p := range pods {
		mine := p.Namespace == svc.Namespace && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels))
		if w := kube.ConvertPod(p); mine && w != nil {
			for _, ip := range p.Status.PodIPs {
				weights[ip.IP] = w
			}
		}
	}
	for _, s := range eps {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if w, ok := weights[e.Addr.String()]; ok && s.Service.Namespace == svc.Namespace && s.Service.Name == svc.Name {
				e.Weight, e.HasWeight = w.Weight, true
				if w.Problem != "" {
					s.Problems = append(s.Problems, api.Problem{Reason: "InvalidWeight", Message: w.Problem})
				}
			}
		}
	}
}

func home(o *metav1.ObjectMeta) {
	if o.Namespace == "" {
		o.Namespace = "default"
	}
}
