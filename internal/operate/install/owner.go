package install

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// owns reports whether the workload made the pod. A selector does not say that: Fairway's DNS pods have the labels that
// the selector of Deployment coredns wants. A Deployment's pods belong to its ReplicaSets, whose names are made of its
// own name and the template's hash.
func owns(workload objects.Ref, p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	if owner == nil || p.Namespace != workload.Namespace {
		return false
	}
	if workload.Kind == "Deployment" {
		return owner.Kind == "ReplicaSet" && owner.Name == workload.Name+"-"+p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	}
	return owner.Kind == workload.Kind && owner.Name == workload.Name
}
