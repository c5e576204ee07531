package metrics

import (
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const (
	group   = "metrics.k8s.io"
	version = group + "/v1beta1"
)

// handler serves the API.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/"+group, func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, apiGroup()) })
	mux.HandleFunc("GET /apis/"+version, func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, apiResources()) })
	mux.HandleFunc("GET /apis/"+version+"/nodes", s.listNodes)
	mux.HandleFunc("GET /apis/"+version+"/nodes/{name}", s.getNode)
	mux.HandleFunc("GET /apis/"+version+"/pods", s.listPods)
	mux.HandleFunc("GET /apis/"+version+"/namespaces/{namespace}/pods", s.listPods)
	mux.HandleFunc("GET /apis/"+version+"/namespaces/{namespace}/pods/{name}", s.getPod)
	return mux
}

func apiGroup() metav1.APIGroup {
	v := metav1.GroupVersionForDiscovery{GroupVersion: version, Version: "v1beta1"}
	return metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: group,
		Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
}

func apiResources() metav1.APIResourceList {
	return metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version,
		APIResources: []metav1.APIResource{
			{Name: "nodes", Kind: "NodeMetrics", Verbs: metav1.Verbs{"get", "list"}},
			{Name: "pods", Kind: "PodMetrics", Namespaced: true, Verbs: metav1.Verbs{"get", "list"}},
		}}
}

func typeOf(kind string) metav1.TypeMeta { return metav1.TypeMeta{Kind: kind, APIVersion: version} }

// fail answers with an error in the API's format.
func fail(w http.ResponseWriter, err error) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	write(w, int(status.Code), status)
}

func missing(resource, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: resource}, name)
}

func selected(r *http.Request) metav1.ListOptions {
	q := r.URL.Query()
	return metav1.ListOptions{LabelSelector: q.Get("labelSelector"), FieldSelector: q.Get("fieldSelector")}
}

// measured returns the metrics of the objects that have metrics.
func measured[O, M any](objects []O, metrics func(O) (M, bool)) []M {
	all := []M{}
	for _, o := range objects {
		if m, ok := metrics(o); ok {
			all = append(all, m)
		}
	}
	return all
}

func (s *Server) listNodes(w http.ResponseWriter, r *http.Request) {
	nodes, err := s.client.CoreV1().Nodes().List(r.Context(), selected(r))
	if err != nil {
		fail(w, err)
		return
	}
	write(w, http.StatusOK, v1beta1.NodeMetricsList{TypeMeta: typeOf("NodeMetricsList"), Items: measured(nodes.Items, s.nodeMetrics)})
}

func (s *Server) getNode(w http.ResponseWriter, r *http.Request) {
	n, err := s.client.CoreV1().Nodes().Get(r.Context(), r.PathValue("name"), metav1.GetOptions{})
	if err != nil {
		fail(w, err)
		return
	}
	m, ok := s.nodeMetrics(*n)
	if !ok {
		fail(w, missing("nodes", n.Name))
		return
	}
	write(w, http.StatusOK, m)
}

func (s *Server) nodeMetrics(n corev1.Node) (v1beta1.NodeMetrics, bool) {
	u, ok := s.usage(n.Name, what{})
	return v1beta1.NodeMetrics{TypeMeta: typeOf("NodeMetrics"), ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels},
		Timestamp: metav1.NewTime(u.At), Window: metav1.Duration{Duration: u.Window}, Usage: u.resources()}, ok
}

func (s *Server) listPods(w http.ResponseWriter, r *http.Request) {
	pods, err := s.client.CoreV1().Pods(r.PathValue("namespace")).List(r.Context(), selected(r))
	if err != nil {
		fail(w, err)
		return
	}
	write(w, http.StatusOK, v1beta1.PodMetricsList{TypeMeta: typeOf("PodMetricsList"), Items: measured(pods.Items, s.podMetrics)})
}

func (s *Server) getPod(w http.ResponseWriter, r *http.Request) {
	p, err := s.client.CoreV1().Pods(r.PathValue("namespace")).Get(r.Context(), r.PathValue("name"), metav1.GetOptions{})
	if err != nil {
		fail(w, err)
		return
	}
	m, ok := s.podMetrics(*p)
	if !ok {
		fail(w, missing("pods", p.Namespace+"/"+p.Name))
		return
	}
	write(w, http.StatusOK, m)
}

// podMetrics returns the metrics of a running pod. It returns false unless every container of the pod has metrics.
func (s *Server) podMetrics(p corev1.Pod) (v1beta1.PodMetrics, bool) {
	m := v1beta1.PodMetrics{TypeMeta: typeOf("PodMetrics"), ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels}}
	if p.Status.Phase != corev1.PodRunning {
		return m, false
	}
	for _, c := range p.Spec.Containers {
		u, ok := s.usage(p.Spec.NodeName, what{p.Namespace, p.Name, c.Name})
		if !ok {
			return m, false
		}
		if m.Timestamp.IsZero() || u.At.Before(m.Timestamp.Time) {
			m.Timestamp, m.Window = metav1.NewTime(u.At), metav1.Duration{Duration: u.Window}
		}
		m.Containers = append(m.Containers, v1beta1.ContainerMetrics{Name: c.Name, Usage: u.resources()})
	}
	return m, true
}
