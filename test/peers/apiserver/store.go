package apiserver

import (
	"fmt"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// An Object is a Service, EndpointSlice, Node or ServiceCIDR.
type Object interface {
	runtime.Object
	metav1.Object
}

// A Server holds objects and serves them; see New.
type Server struct {
	mu      sync.Mutex
	version int64
	kinds   map[string]*kind // by resource
}

// kind is one resource.
type kind struct {
	gv      schema.GroupVersion
	name    string
	empty   func() Object
	objects map[string]*item
	log     []change
	grown   chan struct{} // closed and replaced when the log grows
}

// An item is one version of an object. It never changes.
type item struct {
	Object
	version int64

	mu      sync.Mutex
	encoded map[string][]byte // by media type
}

// A change replaces old by new. Either may be nil.
type change struct {
	version  int64
	old, new *item
}

// New returns a Server without objects.
func New() *Server {
	s := &Server{version: 1, kinds: map[string]*kind{}}
	add := func(resource, name string, gv schema.GroupVersion, empty func() Object) {
		s.kinds[resource] = &kind{gv: gv, name: name, empty: empty, objects: map[string]*item{}, grown: make(chan struct{})}
	}
	add("services", "Service", corev1.SchemeGroupVersion, func() Object { return &corev1.Service{} })
	add("nodes", "Node", corev1.SchemeGroupVersion, func() Object { return &corev1.Node{} })
	add("endpointslices", "EndpointSlice", discoveryv1.SchemeGroupVersion, func() Object { return &discoveryv1.EndpointSlice{} })
	add("servicecidrs", "ServiceCIDR", networkingv1.SchemeGroupVersion, func() Object { return &networkingv1.ServiceCIDR{} })
	return s
}

func (s *Server) kindOf(o Object) *kind {
	switch o.(type) {
	case *corev1.Service:
		return s.kinds["services"]
	case *corev1.Node:
		return s.kinds["nodes"]
	case *discoveryv1.EndpointSlice:
		return s.kinds["endpointslices"]
	case *networkingv1.ServiceCIDR:
		return s.kinds["servicecidrs"]
	}
	panic(fmt.Sprintf("apiserver: objects of type %T are not served", o))
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// Put creates or replaces an object. When it returns, every watcher can see the object. The Server keeps a copy.
func (s *Server) Put(o Object) {
	o = o.DeepCopyObject().(Object)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kindOf(o)
	old := k.objects[key(o)]
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	if old != nil {
		o.SetCreationTimestamp(old.GetCreationTimestamp())
		o.SetUID(old.GetUID())
	} else {
		o.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", s.version)))
		if stamp := o.GetCreationTimestamp(); stamp.IsZero() {
			o.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
		}
	}
	it := &item{Object: o, version: s.version}
	k.objects[key(o)] = it
	k.note(change{s.version, old, it})
}

// Delete removes the object with the type and name of obj, if it exists.
func (s *Server) Delete(o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kindOf(o)
	old := k.objects[key(o)]
	if old == nil {
		return
	}
	delete(k.objects, key(o))
	s.version++
	// A deletion has the object's last state and the version of the deletion.
	gone := old.DeepCopyObject().(Object)
	gone.SetResourceVersion(strconv.FormatInt(s.version, 10))
	k.note(change{s.version, &item{Object: gone, version: s.version}, nil})
}

// note adds to the log. The caller holds mu.
func (k *kind) note(c change) {
	k.log = append(k.log, c)
	close(k.grown)
	k.grown = make(chan struct{})
}

// A filter is a request's selectors.
type filter struct {
	labels    labels.Selector
	fields    fields.Selector
	namespace string
}

// matches reports whether an item matches a request. Nil never does.
func (f filter) matches(it *item) bool {
	if it == nil || f.namespace != "" && it.GetNamespace() != f.namespace {
		return false
	}
	set := fields.Set{"metadata.name": it.GetName(), "metadata.namespace": it.GetNamespace()}
	if svc, ok := it.Object.(*corev1.Service); ok {
		set["spec.clusterIP"] = svc.Spec.ClusterIP
	}
	return f.labels.Matches(labels.Set(it.GetLabels())) && f.fields.Matches(set)
}

// typed returns the type of the change for a watcher with the filter, or "" if the watcher does not see the change.
func (c change) typed(f filter) (string, *item) {
	was, is := f.matches(c.old), f.matches(c.new)
	switch {
	case was && is:
		return "MODIFIED", c.new
	case is:
		return "ADDED", c.new
	case was && c.new != nil:
		// The object has left the watcher's view: send its last state in the view, with the new version.
		left := c.old.DeepCopyObject().(Object)
		left.SetResourceVersion(strconv.FormatInt(c.version, 10))
		return "DELETED", &item{Object: left, version: c.version}
	case was:
		return "DELETED", c.old
	}
	return "", nil
}

// snapshot returns the matching objects and the version of the state. The caller does not hold mu.
func (s *Server) snapshot(k *kind, f filter) ([]*item, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*item, 0, len(k.objects))
	for _, it := range k.objects {
		if f.matches(it) {
			all = append(all, it)
		}
	}
	return all, s.version
}

// since returns the changes after a version, the version of the state, and a channel that is closed when there are
// more.
func (s *Server) since(k *kind, version int64) ([]change, int64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := len(k.log)
	for i > 0 && k.log[i-1].version > version {
		i--
	}
	return k.log[i:len(k.log):len(k.log)], s.version, k.grown
}

// list returns an empty list of the kind, for encoding.
func (k *kind) list(items []*item, version int64) (runtime.Object, error) {
	var l runtime.Object
	switch k.name {
	case "Service":
		l = &corev1.ServiceList{}
	case "Node":
		l = &corev1.NodeList{}
	case "EndpointSlice":
		l = &discoveryv1.EndpointSliceList{}
	default:
		l = &networkingv1.ServiceCIDRList{}
	}
	objects := make([]runtime.Object, len(items))
	for i, it := range items {
		objects[i] = it.Object
	}
	if err := meta.SetList(l, objects); err != nil {
		return nil, fmt.Errorf("make a list of %s: %w", k.name, err)
	}
	m, err := meta.ListAccessor(l)
	if err != nil {
		return nil, fmt.Errorf("make a list of %s: %w", k.name, err)
	}
	m.SetResourceVersion(strconv.FormatInt(version, 10))
	return l, nil
}
