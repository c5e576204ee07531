package kube

import (
	"cmp"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairway-net/fairway/internal/api"
)

// A podReporter reports pod annotations that look like ours and have no effect. It reports one pod of each ReplicaSet,
// StatefulSet and so on, because their pods have a common template. Any goroutine may use it.
type podReporter struct {
	report func(pod api.Name, uid string, p api.Problem)

	mu       sync.Mutex
	reported map[podMistake]bool
}

type podMistake struct {
	owner types.UID
	text  string
}

// maxPodMistakes bounds the memory for reported mistakes. Beyond it, a mistake may be reported again.
const maxPodMistakes = 10000

// check reports mistakes in a pod's annotations, unless they were reported before.
func (r *podReporter) check(o *corev1.Pod) {
	for _, text := range append(misspeltBandwidth(o.Annotations), UnknownAnnotations(ownPrefix, "Pod", o.Annotations, podAnnotations)...) {
		m := podMistake{o.UID, text}
		if owner := metav1.GetControllerOf(o); owner != nil {
			m.owner = cmp.Or(owner.UID, o.UID)
		}
		if r.first(m) {
			r.report(api.Name{Namespace: o.Namespace, Name: o.Name}, string(o.UID), api.Problem{Reason: ReasonUnknownAnnotation, Message: text})
		}
	}
}

func (r *podReporter) first(m podMistake) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reported[m] {
		return false
	}
	if r.reported == nil || len(r.reported) >= maxPodMistakes {
		r.reported = map[podMistake]bool{}
	}
	r.reported[m] = true
	return true
}
